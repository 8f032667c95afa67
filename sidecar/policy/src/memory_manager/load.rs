//! Loading a tenant: chunks, the first mapping, every slab.

use alloc::vec::Vec;

use super::{Failed, MemoryManager};
use crate::action::{Action, Work};
use crate::chunk_table::{Owner, Ownership};
use crate::event::{Failure, Outcome};
use crate::ids::ChunkId;
use crate::pending::{Change, Pending};
use crate::reason::Reason;
use crate::step_model::Layout;

/// Refusals of a single chunk in a row after which the device counts as full.
const CREATE_TRIES: u32 = 3;

/// Times the first mapping is tried.
const MAP_TRIES: u32 = 3;

impl MemoryManager {
    /// Orders chunks: all at once, and after a refusal half as many at a time.
    pub(super) fn create_next(&mut self, out: &mut Vec<Action>) {
        let missing = self.sizes.useful().saturating_sub(self.chunk_table.created());
        let count = self.create_piece.min(missing);
        if count == 0 || self.create_tries >= CREATE_TRIES {
            self.loan_state.awaits_floor = self.loan_state.can_borrow && self.missing_floor() > 0;
            if !self.loan_state.awaits_floor {
                self.lay_out(out);
            }
            return;
        }
        self.create(count, out);
    }

    fn create(&mut self, count: u32, out: &mut Vec<Action>) {
        let chunks: Vec<_> = self.chunk_table.uncreated().take(count as usize).collect();
        self.order(Work::Create(chunks.clone()), Reason::Load, Pending::Create(chunks), out);
    }

    pub(super) fn created(&mut self, chunks: &[ChunkId], outcome: Outcome, out: &mut Vec<Action>) {
        match outcome {
            Outcome::Done { .. } => {
                self.create_tries = 0;
                chunks.iter().for_each(|chunk| self.chunk_table.create(*chunk));
            }
            // The ledger refuses: neighbours still have it.
            Outcome::Failed(Failure::OutOfMemory) if self.loan_state.awaits_floor => return,
            Outcome::Failed(_) => {
                self.count(Reason::BackendFailed);
                self.create_piece = (chunks.len() as u32 / 2).max(1);
                self.create_tries += u32::from(chunks.len() == 1);
            }
        }
        if self.loan_state.awaits_floor && self.missing_floor() == 0 {
            self.loan_state.awaits_floor = false;
            return self.lay_out(out);
        }
        self.create_next(out);
    }

    /// Chunks without which the tenant cannot start, and which neighbours hold: their former lives, or another's. None once
    /// it has them.
    pub fn missing_floor_chunks(&self) -> Option<u32> {
        self.loan_state.awaits_floor.then(|| self.missing_floor())
    }

    /// Asks the device for the floor once more.
    pub fn claim_floor(&mut self, out: &mut Vec<Action>) {
        if self.loan_state.awaits_floor && !self.is_blocked() {
            self.create(self.missing_floor(), out);
        }
    }

    fn missing_floor(&self) -> u32 {
        self.sizes.floor(&self.params).saturating_sub(self.chunk_table.created())
    }

    /// Decides who gets what of the chunks that exist, and maps it.
    fn lay_out(&mut self, out: &mut Vec<Action>) {
        let created = self.chunk_table.created();
        let Some(layout) = self.start_layout(created) else {
            self.give_up(out);
            return;
        };
        // What neighbours still have comes later, and with it the layout that it allows.
        self.loan_state.chunks_to_recreate =
            if self.loan_state.can_borrow { self.sizes.useful().saturating_sub(created) } else { 0 };
        self.loan_state.is_recreate_refused = self.loan_state.chunks_to_recreate > 0;
        let base =
            self.start_layout(created + self.loan_state.chunks_to_recreate).unwrap_or_else(|| layout.clone());
        self.base = if self.forced.is_some() { Layout::resident() } else { base };
        let next = self.initial_ownership(&layout);
        self.order_change(Change { next, layout: Some(layout), reason: Reason::Load }, &[], out);
    }

    /// Not even the floor exists: everything is given back.
    fn give_up(&mut self, out: &mut Vec<Action>) {
        let chunk_bytes = self.geometry.chunk_bytes;
        let floor_bytes = u64::from(self.sizes.floor(&self.params)) * chunk_bytes;
        self.failure = Some(Failed::Create { created_bytes: self.chunk_table.created_bytes(), floor_bytes });
        if self.chunk_table.count(Owner::Free) > 0 {
            self.order_release(Reason::BackendFailed, out);
        }
    }

    /// Everything that nobody holds goes back to the device.
    pub(super) fn order_release(&mut self, reason: Reason, out: &mut Vec<Action>) {
        let chunks: Vec<_> = self.chunk_table.free().collect();
        self.order(Work::Release(chunks.clone()), reason, Pending::Release(chunks), out);
    }

    pub(super) fn released(&mut self, chunks: &[ChunkId], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            chunks.iter().for_each(|chunk| self.chunk_table.release(*chunk));
        } else if self.loaded {
            self.on_transfer_failed();
        }
    }

    /// The layout to start with: as ordered, else all resident, else (Oneiros) the fewest moving layers that fit.
    pub(super) fn start_layout(&self, created: u32) -> Option<Layout> {
        let room = created.checked_sub(self.sizes.kv_guaranteed)?;
        let fits = |layout: &Layout| self.sizes.fixed_chunks(layout) <= room;
        if let Some(forced) = self.forced {
            return Some(self.sizes.forced_layout(forced)).filter(fits);
        }
        let resident = Layout::resident();
        if fits(&resident) {
            return Some(resident);
        }
        let most = if self.params.policy().reclaims_weights() { self.sizes.cap_m } else { 0 };
        (1..most).map(|alpha| self.choose(&resident, alpha, u64::MAX).layout).find(fits)
    }

    pub(super) fn initial_ownership(&self, layout: &Layout) -> Ownership {
        let mut chunks = self.chunk_table.free();
        let mut take = |count: u32| -> Vec<ChunkId> { chunks.by_ref().take(count as usize).collect() };
        let sizes = &self.sizes;
        let spare = self.chunk_table.created() - sizes.fixed_chunks(layout) - sizes.kv_guaranteed;
        let activation = sizes.activation_max.min(sizes.activation_min + spare);
        let mut next = Ownership::new(&self.geometry, sizes.kv_limit);
        next.global = take(sizes.global);
        self.assign_slots(layout, &mut next);
        for l in 0..next.layers.len() {
            if next.slot_of[l].is_none() {
                next.layers[l] = take(sizes.slabs[l]);
            }
        }
        let slots = (0..layout.beta).map(|s| sizes.slot(layout, crate::ids::SlotId(s)));
        next.slots = slots.map(&mut take).collect();
        next.activation = take(activation);
        next.staging = take(sizes.staging);
        for (frame, chunk) in next.frames.iter_mut().zip(chunks) {
            *frame = Some(chunk);
        }
        next
    }

    /// The first mapping failed: once more, up to a bound.
    pub(super) fn first_mapping_failed(&mut self, out: &mut Vec<Action>) {
        self.map_tries += 1;
        if self.map_tries >= MAP_TRIES {
            self.failure = Some(Failed::Map);
            self.order_release(Reason::BackendFailed, out);
        } else {
            self.lay_out(out);
        }
    }

    /// Nothing has been mapped yet.
    pub(super) fn nothing_mapped(&self) -> bool {
        self.chunk_table.count(Owner::Free) == self.chunk_table.created()
    }
}

//! Loads a tenant: chunks, the first mapping, every layer.

use alloc::vec::Vec;

use super::{Failed, MemoryManager};
use crate::action::{Action, Work};
use crate::chunk_table::Ownership;
use crate::chunks::FixedParts;
use crate::event::{Failure, Outcome};
use crate::ids::ChunkId;
use crate::orders::pending::{Pending, PendingTransaction};
use crate::reason::Reason;
use crate::step_model::Layout;

impl MemoryManager {
    /// Orders chunks: all at once, and after a refusal half as many at a time.
    pub(super) fn create_next(&mut self, out: &mut Vec<Action>) {
        if let Some(chunks) = self.chunks.next_piece(self.sizes.useful()) {
            return self.create(chunks, out);
        }
        self.loans.await_floor(self.loans().missing_floor());
        if !self.loans.awaits_floor() {
            self.lay_out(out);
        }
    }

    pub(super) fn create(&mut self, chunks: Vec<ChunkId>, out: &mut Vec<Action>) {
        self.orders.order(Work::Create(chunks.clone()), Reason::Load, Pending::Create(chunks), out);
    }

    pub(super) fn on_created(&mut self, chunks: &[ChunkId], outcome: Outcome, out: &mut Vec<Action>) {
        match outcome {
            Outcome::Done { .. } => self.chunks.end_piece(chunks, true),
            // The ledger refuses: peers still hold them.
            Outcome::Failed(Failure::OutOfMemory) if self.loans.awaits_floor() => return,
            Outcome::Failed(_) => {
                self.orders.count(Reason::BackendFailed);
                self.chunks.end_piece(chunks, false);
            }
        }
        if self.loans.awaits_floor() && self.loans().missing_floor() == 0 {
            self.loans.await_floor(0);
            return self.lay_out(out);
        }
        self.create_next(out);
    }

    /// Decides the layout for the chunks that exist, and maps it.
    fn lay_out(&mut self, out: &mut Vec<Action>) {
        let created = self.chunks.table().created();
        let Some(layout) = self.layout_search().starting(created) else {
            self.give_up(out);
            return;
        };
        // Chunks that peers still hold come later, and with them the layout that they allow.
        self.loans.start_without(self.sizes.useful().saturating_sub(created));
        let base = self
            .layout_search()
            .starting(created + self.loans.chunks_to_recreate())
            .unwrap_or_else(|| layout.clone());
        self.base = if self.forced.is_some() { Layout::resident() } else { base };
        let next = self.initial_ownership(&layout);
        self.order_transaction(
            PendingTransaction { next, layout: Some(layout), reason: Reason::Load },
            &[],
            out,
        );
    }

    /// Not even the floor exists: everything is released.
    fn give_up(&mut self, out: &mut Vec<Action>) {
        let chunk_bytes = self.geometry.chunk_bytes;
        let floor_bytes = u64::from(self.sizes.floor) * chunk_bytes;
        self.failure =
            Some(Failed::Create { created_bytes: self.chunks.table().created_bytes(), floor_bytes });
        if self.chunks.free_count() > 0 {
            self.order_release(Reason::BackendFailed, out);
        }
    }

    /// Releases all free chunks to the device.
    pub(super) fn order_release(&mut self, reason: Reason, out: &mut Vec<Action>) {
        let chunks: Vec<_> = self.chunks.table().free().collect();
        self.orders.order(Work::Release(chunks.clone()), reason, Pending::Release(chunks), out);
    }

    pub(super) fn on_released(&mut self, chunks: &[ChunkId], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            self.chunks.release(chunks);
        } else if self.loaded {
            self.transitions.on_backend_failed(&mut self.orders);
        }
    }

    pub(super) fn initial_ownership(&self, layout: &Layout) -> Ownership {
        let sizes = &self.sizes;
        let spare = self.chunks.table().created() - sizes.fixed_chunks(layout) - sizes.kv_guaranteed;
        let activation = sizes.activation_max.min(sizes.activation_min + spare);
        let fixed = FixedParts { global: sizes.global, activation, staging: sizes.staging };
        self.chunks.initial(layout, fixed)
    }

    /// The first mapping failed: tries again, up to a bound.
    pub(super) fn first_mapping_failed(&mut self, out: &mut Vec<Action>) {
        if self.chunks.retries_mapping() {
            return self.lay_out(out);
        }
        self.failure = Some(Failed::Map);
        self.order_release(Reason::BackendFailed, out);
    }
}

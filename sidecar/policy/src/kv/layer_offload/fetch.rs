//! Orders the fetches of each step and updates the block tables by their coverage.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{LayerOffload, StagingSlot, group_by_slots};
use crate::action::staging::{FetchLayerBlocks, StagedRange};
use crate::ids::{ChunkId, Generation, HostBlockId, LayerBlockId, LayerId, SlotId};
use crate::kv::Kv;
use crate::kv::blocks::KvBlocks;
use crate::kv::host_kv_pool::HostKvPool;
use crate::layer_set::LayerSet;
use crate::slots::{DueCopy, Generations};

impl LayerOffload {
    /// Returns the number of fetches and spills in progress.
    pub fn fetches(&self) -> u32 {
        self.fetching.len() as u32
    }

    /// Whether fetching is disabled under the placement in force, because a fetch failed.
    pub fn is_fetching_disabled(&self) -> bool {
        self.is_fetching_disabled
    }

    /// Whether the step reads and writes no buffer.
    fn skips_buffers(&self) -> bool {
        self.staging_slots.is_empty() || self.are_buffers_idle
    }

    /// Returns the generation that the KV of each moving layer must show in this step, in layer order.
    pub fn fetch_lease(&self) -> Vec<(LayerId, Generation)> {
        if self.skips_buffers() { Vec::new() } else { self.slots.lease().collect() }
    }

    /// Whether a later fetch into this buffer, or spill out of it, waits for the one of `generation`.
    pub fn fetches_behind(&self, slot: SlotId, generation: Generation) -> bool {
        self.slots.queued_behind(slot, generation)
            || self.prefill_spills.is_spill_pending_after(slot, generation)
    }

    /// Sets whether the following steps use no buffers.
    pub(in crate::kv) fn set_buffers_idle(&mut self, idle: bool) {
        self.are_buffers_idle = idle;
    }

    /// Returns the fetches that are due, including failed ones to repeat.
    pub(in crate::kv) fn due_fetches(&mut self) -> Vec<DueCopy> {
        let due = self.slots.take_due();
        let slots = self.prefill_spills.first_slot().unwrap_or(self.staging_slots.len() as u32);
        for DueCopy { instance, .. } in &due {
            self.covered.record(instance.generation, slots);
            self.record_fetch(instance.generation);
        }
        due
    }

    /// Handles the loss of the engine: every fetch is ordered again.
    pub(in crate::kv) fn forget_fetches(&mut self) {
        self.slots.reset();
        self.covered.forget_before(None);
        self.prefill_spills.restart_spills();
    }

    /// Returns the blocks that a fetch copies. A buffer's blocks keep their chunks as long as the buffer is not moved.
    pub(in crate::kv) fn fetch_layer_blocks(
        &mut self,
        due: &DueCopy,
        kv_blocks: &KvBlocks,
        chunk: impl Fn(LayerBlockId) -> ChunkId,
    ) -> FetchLayerBlocks {
        let covered = self.covered.get(due.instance.generation).expect("a due fetch has a set of KV blocks");
        if self.is_fetching_disabled {
            return Vec::new().into();
        }
        self.update_slot_table(kv_blocks, chunk);
        FetchLayerBlocks::of(self.table.clone(), due.instance.layer, due.instance.slot, covered)
    }

    /// Adds new staging slots to the backend's table.
    fn update_slot_table(&mut self, kv_blocks: &KvBlocks, chunk: impl Fn(LayerBlockId) -> ChunkId) {
        let (known_slots, slots) = (self.table.slots.len(), self.staging_slots.len());
        if known_slots == slots {
            return;
        }
        let range = |staged: StagingSlot| {
            let host_location =
                kv_blocks.get(staged.kv_block).host_location.expect("a staged KV block has a host location");
            let host = HostBlockId(host_location.place * self.layers);
            StagedRange { set: staged.set, host, generation: host_location.generation }
        };
        let table = Arc::make_mut(&mut self.table);
        table.slots.extend(self.staging_slots[known_slots..].iter().map(|staged| staged.map(range)));
        table.sets.extend(self.sets[table.sets.len()..].iter().map(|set| set.members));
        table.buffers.resize(self.buffers.len(), Vec::new());
        for (known, buffer) in table.buffers.iter_mut().zip(&self.buffers) {
            known.extend(
                buffer[known_slots..slots].iter().map(|layer_block| (*layer_block, chunk(*layer_block))),
            );
        }
    }

    /// Returns the ranges of staging slots for which the tables newly name buffers, with the layers of each range.
    fn newly_covered(&mut self) -> BTreeMap<[u32; 2], LayerSet> {
        let lease = self.slots.lease().map(|(_, generation)| generation);
        let layers = self.placement.layout.moving.iter().zip(self.covered.walk(lease));
        group_by_slots(layers.map(|(layer, covered)| {
            let covered = covered.expect("a lease names fetches that were ordered");
            let covered_before = &mut self.slots_in_tables[layer.index()];
            (*layer, [core::mem::replace(covered_before, covered.max(*covered_before)), covered])
        }))
    }

    /// Ends the step: forgets the coverage of fetches that no later step reads.
    fn end_step(&mut self) {
        self.slots.finish_step();
        let oldest = self.slots.window().map(|instance| instance.generation).min();
        self.covered.forget_before(oldest);
    }

    /// Frees the host places that no fetch in progress reads.
    pub(super) fn release_pinned_places(&mut self, host_pool: &mut HostKvPool) {
        let oldest = self.fetching.front().copied();
        let pinned = core::mem::take(&mut self.pinned_places);
        let (unread, pinned): (Vec<_>, Vec<_>) =
            pinned.into_iter().partition(|(newest, _)| oldest.is_none_or(|oldest| oldest > *newest));
        unread.into_iter().for_each(|(_, place)| host_pool.give(place));
        self.pinned_places = pinned;
    }

    /// Frees a KV block's staging slot and its host place, the latter once no fetch reads it any more.
    pub(in crate::kv) fn free_place(&mut self, slot: Option<u32>, place: u32, host_pool: &mut HostKvPool) {
        slot.into_iter().for_each(|slot| self.vacate(slot));
        if self.fetching.is_empty() {
            host_pool.give(place);
        } else {
            self.pinned_places.push((self.newest, place));
        }
    }
}

impl Kv {
    /// Begins a step: orders its fetches and, if `early`, the first ones of the next step. The tables name buffers
    /// where the fetches cover them.
    pub fn begin_fetches(&mut self, early: bool, generations: &mut Generations) -> Vec<DueCopy> {
        if self.layer_offload.skips_buffers() {
            return Vec::new();
        }
        if early {
            self.layer_offload.slots.extend_step(generations);
        } else {
            self.layer_offload.slots.extend_one_step(generations);
        }
        let due = self.layer_offload.due_fetches();
        self.update_tables();
        if let Some(slots) = self.layer_offload.begin_spills(generations) {
            self.history.word(u64::from(slots));
        }
        due
    }

    /// Sets whether the following steps use no buffers.
    pub fn set_buffers_idle(&mut self, idle: bool) {
        self.layer_offload.set_buffers_idle(idle);
    }

    /// Returns the fetches that are due, including failed ones to repeat.
    pub fn due_fetches(&mut self) -> Vec<DueCopy> {
        self.layer_offload.due_fetches()
    }

    /// Handles the loss of the engine: every fetch is ordered again.
    pub fn forget_fetches(&mut self) {
        self.layer_offload.forget_fetches();
    }

    /// Returns the blocks that a fetch copies.
    pub fn fetch_layer_blocks(
        &mut self,
        due: &DueCopy,
        chunk: impl Fn(LayerBlockId) -> ChunkId,
    ) -> FetchLayerBlocks {
        self.layer_offload.fetch_layer_blocks(due, &self.kv_blocks, chunk)
    }

    fn update_tables(&mut self) {
        let mut shared = BTreeSet::new();
        for ([from, to], layers) in self.layer_offload.newly_covered() {
            for staged in self.layer_offload.staging_slots[from as usize..to as usize].iter().flatten() {
                if (self.layer_offload.sets[usize::from(staged.set)].members & layers).is_empty() {
                    continue;
                }
                // The slot's user may have closed since.
                let is_current = self.requests.has_in_row(staged.user, staged.kv_block);
                if self.kv_blocks.get(staged.kv_block).refs == 1 && is_current {
                    self.requests.touch_row(staged.user);
                } else {
                    shared.insert(staged.kv_block);
                }
            }
        }
        self.requests.touch(&shared);
    }

    /// Ends the step.
    pub fn end_fetches(&mut self) {
        if !self.layer_offload.skips_buffers() {
            self.layer_offload.end_step();
            self.close_spills();
        }
    }

    /// Handles the end of a fetch. `leased`: a step is in progress or will be repeated.
    pub fn fetched(
        &mut self,
        (layer, slot): (LayerId, SlotId),
        generation: Generation,
        done: Result<(), bool>,
        leased: bool,
        generations: &mut Generations,
    ) {
        let offload = &mut self.layer_offload;
        offload.fetching.retain(|known| *known != generation);
        let known = slot.0 < offload.placement.layout.beta;
        match done {
            Ok(()) if known => offload.slots.on_filled(slot, layer, generation),
            Err(clean) if known => offload.slots.incomplete(slot, generation, clean, leased, generations),
            _ => {}
        }
        offload.release_pinned_places(&mut self.host_pool);
    }
}

//! Orders the fetches of each step and updates the block tables by their coverage.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{StagingSlot, group_by_slots};
use crate::action::staging::{FetchLayerBlocks, StagedRange};
use crate::ids::{ChunkId, Generation, HostBlockId, LayerBlockId, LayerId, SlotId};
use crate::kv::Kv;
use crate::layer_set::LayerSet;
use crate::slots::{DueCopy, Generations};

impl Kv {
    /// Begins a step: orders its fetches and, if `early`, the first ones of the next step. The tables name buffers
    /// where the fetches cover them.
    pub fn begin_fetches(&mut self, early: bool, generations: &mut Generations) -> Vec<DueCopy> {
        if self.layer_offload.staging_slots.is_empty() || self.layer_offload.are_buffers_idle {
            return Vec::new();
        }
        if early {
            self.layer_offload.slots.extend_step(generations);
        } else {
            self.layer_offload.slots.extend_one_step(generations);
        }
        let due = self.due_fetches();
        self.update_tables();
        self.begin_spills(generations);
        due
    }

    /// Sets whether the following steps use no buffers.
    pub fn set_buffers_idle(&mut self, idle: bool) {
        self.layer_offload.are_buffers_idle = idle;
    }

    /// Returns the fetches that are due, including failed ones to repeat.
    pub fn due_fetches(&mut self) -> Vec<DueCopy> {
        let due = self.layer_offload.slots.take_due();
        let slots = self
            .layer_offload
            .prefill_spills
            .first_slot()
            .unwrap_or(self.layer_offload.staging_slots.len() as u32);
        for DueCopy { instance, .. } in &due {
            self.layer_offload.covered.record(instance.generation, slots);
            self.layer_offload.record_fetch(instance.generation);
        }
        due
    }

    fn update_tables(&mut self) {
        let mut shared = BTreeSet::new();
        for ([from, to], layers) in self.newly_covered() {
            for staged in self.layer_offload.staging_slots[from as usize..to as usize].iter().flatten() {
                if (self.layer_offload.sets[usize::from(staged.set)].members & layers).is_empty() {
                    continue;
                }
                // The slot's user may have closed since.
                let user =
                    self.sequences.get(&staged.user.0).and_then(|s| s.kv_blocks.get(staged.user.1 as usize));
                if self.kv_blocks.get(staged.kv_block).refs == 1 && user == Some(&staged.kv_block) {
                    self.dirty.insert(staged.user);
                } else {
                    shared.insert(staged.kv_block);
                }
            }
        }
        self.touch(&shared);
    }

    /// Returns the ranges of staging slots for which the tables newly name buffers, with the layers of each range.
    fn newly_covered(&mut self) -> BTreeMap<[u32; 2], LayerSet> {
        let stream = &mut self.layer_offload;
        let lease = stream.slots.lease().map(|(_, generation)| generation);
        let layers = stream.placement.layout.moving.iter().zip(stream.covered.walk(lease));
        group_by_slots(layers.map(|(layer, covered)| {
            let covered = covered.expect("a lease names fetches that were ordered");
            let covered_before = &mut stream.slots_in_tables[layer.index()];
            (*layer, [core::mem::replace(covered_before, covered.max(*covered_before)), covered])
        }))
    }

    /// Returns the generation that the KV of each moving layer must show in this step, in layer order.
    pub fn fetch_lease(&self) -> Vec<(LayerId, Generation)> {
        let none = self.layer_offload.staging_slots.is_empty() || self.layer_offload.are_buffers_idle;
        if none { Vec::new() } else { self.layer_offload.slots.lease().collect() }
    }

    /// Returns the blocks that a fetch copies. A buffer's blocks keep their chunks as long as the buffer is not moved.
    pub fn fetch_layer_blocks(
        &mut self,
        due: &DueCopy,
        chunk: impl Fn(LayerBlockId) -> ChunkId,
    ) -> FetchLayerBlocks {
        let covered = self
            .layer_offload
            .covered
            .get(due.instance.generation)
            .expect("a due fetch has a set of KV blocks");
        if self.layer_offload.is_fetching_disabled {
            return Vec::new().into();
        }
        self.update_slot_table(chunk);
        FetchLayerBlocks::of(self.layer_offload.table.clone(), due.instance.layer, due.instance.slot, covered)
    }

    /// Adds new staging slots to the backend's table.
    fn update_slot_table(&mut self, chunk: impl Fn(LayerBlockId) -> ChunkId) {
        let stream = &mut self.layer_offload;
        let (known_slots, slots) = (stream.table.slots.len(), stream.staging_slots.len());
        if known_slots == slots {
            return;
        }
        let range = |staged: StagingSlot| {
            let host_location = self
                .kv_blocks
                .get(staged.kv_block)
                .host_location
                .expect("a staged KV block has a host location");
            let host = HostBlockId(host_location.place * self.layers);
            StagedRange { set: staged.set, host, generation: host_location.generation }
        };
        let table = Arc::make_mut(&mut stream.table);
        table.slots.extend(stream.staging_slots[known_slots..].iter().map(|staged| staged.map(range)));
        table.sets.extend(stream.sets[table.sets.len()..].iter().map(|set| set.members));
        table.buffers.resize(stream.buffers.len(), Vec::new());
        for (known, buffer) in table.buffers.iter_mut().zip(&stream.buffers) {
            known.extend(
                buffer[known_slots..slots].iter().map(|layer_block| (*layer_block, chunk(*layer_block))),
            );
        }
    }

    /// Ends the step.
    pub fn end_fetches(&mut self) {
        if self.layer_offload.staging_slots.is_empty() || self.layer_offload.are_buffers_idle {
            return;
        }
        self.layer_offload.slots.finish_step();
        self.prune_coverage();
        self.close_spills();
    }

    fn prune_coverage(&mut self) {
        let oldest = self.layer_offload.slots.window().map(|instance| instance.generation).min();
        self.layer_offload.covered.forget_before(oldest);
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
        self.layer_offload.fetching.retain(|known| *known != generation);
        let known = slot.0 < self.layer_offload.placement.layout.beta;
        match done {
            Ok(()) if known => self.layer_offload.slots.committed(slot, layer, generation),
            Err(clean) if known => {
                self.layer_offload.slots.incomplete(slot, generation, clean, leased, generations)
            }
            _ => {}
        }
        self.release_pinned_places();
    }

    /// Whether a later fetch into this buffer, or spill out of it, waits for the one of `generation`.
    pub fn fetches_behind(&self, slot: SlotId, generation: Generation) -> bool {
        self.layer_offload.slots.queued_behind(slot, generation)
            || self.layer_offload.prefill_spills.is_spill_pending_after(slot, generation)
    }

    /// Handles the loss of the engine: every fetch is ordered again.
    pub fn forget_fetches(&mut self) {
        self.layer_offload.slots.reset();
        self.layer_offload.covered.forget_before(None);
        self.layer_offload.prefill_spills.restart_spills();
    }

    pub(super) fn release_pinned_places(&mut self) {
        let oldest = self.layer_offload.fetching.front().copied();
        let pinned = core::mem::take(&mut self.layer_offload.pinned_places);
        let (unread, pinned): (Vec<_>, Vec<_>) =
            pinned.into_iter().partition(|(newest, _)| oldest.is_none_or(|oldest| oldest > *newest));
        unread.into_iter().for_each(|(_, place)| self.host_pool.give(place));
        self.layer_offload.pinned_places = pinned;
    }

    /// Frees the KV block's staging slot and its host place, the latter once no fetch reads it any more.
    pub(in crate::kv) fn pin_place(&mut self, slot: Option<u32>, place: u32) {
        slot.into_iter().for_each(|slot| self.layer_offload.vacate(slot));
        if self.layer_offload.fetching.is_empty() {
            self.host_pool.give(place);
        } else {
            self.layer_offload.pinned_places.push((self.layer_offload.newest, place));
        }
    }

    /// Returns the number of fetches and spills in progress.
    pub fn fetches(&self) -> u32 {
        self.layer_offload.fetching.len() as u32
    }
}

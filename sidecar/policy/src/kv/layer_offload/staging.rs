//! Assigns staging slots, evicts the staged blocks and manages the buffers.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::{LayerOffload, StagingSlot, group_by_slots};
use crate::ids::{KvBlockId, LayerId, RequestId};
use crate::kv::Kv;
use crate::kv::blocks::KvBlocks;
use crate::kv::chunk_pool::KvChunkPool;
use crate::layer_set::LayerSet;

impl LayerOffload {
    /// Returns the number of used and of free staging slots.
    pub fn slot_counts(&self) -> (u32, u32) {
        (self.staging_slots.len() as u32 - self.free_slots, self.free_slots)
    }

    /// Returns the part of the request's set that is in the host tier, if the KV block may be staged with it.
    fn resident_set(
        &mut self,
        kv_block: KvBlockId,
        request: RequestId,
        kv_blocks: &KvBlocks,
        chunk_pool: &KvChunkPool,
    ) -> Option<u16> {
        let set = *self.placement.of.get(&request)?;
        if chunk_pool.free_layer_blocks() < u32::from(self.placement.layout.beta) {
            return None;
        }
        let members = self.sets[usize::from(set)].members & kv_blocks.get(kv_block).hosted_layers;
        let kept = self.set_index(members);
        self.saves_layer_blocks(kept).then_some(kept)
    }

    /// Whether a staging slot with this set takes no more blocks than it frees at once, even if the buffers' next
    /// fetches are already ordered: those keep as many blocks as there are buffers, and the buffers take as many. A
    /// request alone therefore always fits.
    fn saves_layer_blocks(&self, set: u16) -> bool {
        let set = self.set(set);
        !set.is_empty() && set.len() >= 2 * usize::from(self.placement.layout.beta)
    }

    /// Returns the layers of the set that the host tier lacks.
    pub(super) fn missing_on_host(&self, kv_block: KvBlockId, set: u16, kv_blocks: &KvBlocks) -> LayerSet {
        self.sets[usize::from(set)].members - kv_blocks.get(kv_block).hosted_layers
    }

    /// Gives a KV block the next staging slot, and the buffers space for it. Returns the slot.
    fn add_slot(&mut self, staged: StagingSlot, chunk_pool: &mut KvChunkPool) -> u32 {
        let at = self.staging_slots.len() as u32;
        self.staging_slots.push(Some(staged));
        for buffer in &mut self.buffers {
            if buffer.len() <= at as usize {
                buffer.extend(chunk_pool.take_buffer(1));
            }
        }
        at
    }

    /// Frees the layer blocks of all buffers.
    pub(super) fn release_buffers(&mut self, chunk_pool: &mut KvChunkPool) {
        for buffer in core::mem::take(&mut self.buffers) {
            chunk_pool.give(&buffer);
        }
    }

    /// Takes the next KV block with complete copies that waits for a staging slot.
    fn take_ready(&mut self) -> Option<StagingSlot> {
        self.ready.pop_front()
    }

    /// Returns, for each moving layer, the staging slots that its next ordered fetch covers; all slots if none is
    /// ordered.
    fn covered_by_all(&self) -> Vec<u32> {
        let mut covered = vec![self.staging_slots.len() as u32; self.placement.layout.moving.len()];
        // Later fetches cover more.
        let window = self.slots.window().map(|instance| instance.generation);
        for (covered, known) in covered.iter_mut().zip(self.covered.walk(window)) {
            *covered = known.unwrap_or(*covered);
        }
        covered
    }

    /// Evicts blocks by groups of layers, and slot by slot within a group, because a KV block's blocks are mostly
    /// adjacent.
    fn evict_staged_layer_blocks(&mut self, kv_blocks: &mut KvBlocks, chunk_pool: &mut KvChunkPool) {
        let covered = self.covered_by_all();
        // Most layers share a range of slots; layers whose next fetch was ordered early have a shorter one.
        let groups =
            group_by_slots(self.placement.layout.moving.iter().zip(covered).map(|(layer, covered)| {
                (*layer, [core::mem::replace(&mut self.evicted_slots[layer.index()], covered), covered])
            }));
        let mut left = Vec::new();
        for ([from, to], layers) in groups {
            for staged in self.staging_slots[from as usize..to as usize].iter().flatten() {
                let members = self.sets[usize::from(staged.set)].members;
                kv_blocks.take_layers(staged.kv_block, members & layers, &mut left);
            }
        }
        chunk_pool.give(&left);
    }
}

impl Kv {
    /// Assigns a running request to a set of the placement in force; write-back of its KV blocks starts.
    pub fn register(&mut self, request: RequestId, set: u16) {
        assert!(usize::from(set) < self.layer_offload.placement.sets.len(), "the set exists");
        if self.requests.contains(request) {
            self.layer_offload.placement.of.insert(request, set);
        }
    }

    /// Stages the incomplete KV blocks of running requests if the placement allows it and there is space; otherwise
    /// queues them for swap-in.
    pub(super) fn restage(&mut self) {
        for (kv_block, user) in self.requests.rows_of_running() {
            if self.kv_blocks.is_whole(kv_block) || self.kv_blocks.get(kv_block).staging_slot().is_some() {
                continue;
            }
            self.stage_resident(kv_block, user);
            self.missing_layer_blocks.add(kv_block);
        }
    }

    /// Stages a full KV block of a running request if its set allows it and there is space.
    fn stage_resident(&mut self, kv_block: KvBlockId, user: (RequestId, u32)) {
        let full = user.1 < self.requests.full(user.0);
        let set = self.layer_offload.resident_set(kv_block, user.0, &self.kv_blocks, &self.chunk_pool);
        if let Some(set) = set.filter(|_| full) {
            self.stage(StagingSlot { kv_block, set, user });
        }
    }

    /// Offloads these layers of the request, which is open and runs from now on. Its KV blocks that are not on the
    /// device are staged as far as the placement and the space allow. Returns whether there are such KV blocks.
    ///
    /// # Panics
    /// If a fetch is in progress, or one of the layers does not move.
    pub fn join(&mut self, request: RequestId, set: Vec<LayerId>) -> bool {
        let layout = &self.layer_offload.placement.layout;
        assert!(set.iter().all(|layer| layout.slot_of(*layer).is_some()), "an offloaded layer has a buffer");
        assert!(self.layer_offload.fetching.is_empty(), "buffers grow while nothing is copied into them");
        let set = self.layer_offload.set_index(set.into_iter().collect());
        self.register(request, set);
        let unstaged: Vec<_> = self.of(request).unstaged().collect();
        for (at, kv_block) in &unstaged {
            self.stage_resident(*kv_block, (request, *at as u32));
        }
        if !unstaged.is_empty() {
            // What was fetched early lacks the new slots.
            self.layer_offload.forget_fetches();
        }
        !unstaged.is_empty()
    }

    /// Gives a KV block a staging slot.
    pub(super) fn stage(&mut self, staged: StagingSlot) {
        let at = self.layer_offload.add_slot(staged, &mut self.chunk_pool);
        self.kv_blocks.set_staging_slot(staged.kv_block, Some(at));
        self.missing_layer_blocks.recheck(staged.kv_block);
        self.history.word(u64::from(staged.kv_block.0) << 16 ^ u64::from(staged.set));
    }

    /// Stages KV blocks whose copies are complete, as long as there are blocks for the buffers; then evicts the blocks
    /// that every later step reads from a buffer.
    pub fn evict_staged(&mut self) {
        let beta = u32::from(self.layer_offload.placement.layout.beta);
        while let Some(staged) = self.layer_offload.take_ready() {
            let kv_block = self.kv_blocks.find(staged.kv_block);
            let runs = self.requests.get(staged.user.0).is_some_and(|user| !user.is_suspended());
            let fits = runs
                && kv_block.is_some_and(|kv_block| kv_block.refs > 0 && kv_block.staging_slot().is_none());
            if !fits
                || !self.kv_blocks.is_whole(staged.kv_block)
                || !self
                    .layer_offload
                    .missing_on_host(staged.kv_block, staged.set, &self.kv_blocks)
                    .is_empty()
                || !self.layer_offload.saves_layer_blocks(staged.set)
            {
                continue;
            }
            if self.chunk_pool.free_layer_blocks() < beta {
                self.layer_offload.ready.push_front(staged);
                break;
            }
            self.stage(staged);
        }
        self.layer_offload.evict_staged_layer_blocks(&mut self.kv_blocks, &mut self.chunk_pool);
    }

    /// Suspends the request: KV blocks that no running request uses lose their staging slots.
    pub fn suspend(&mut self, request: RequestId) {
        self.layer_offload.forget_request(request);
        let kv_blocks = self.requests.suspend(request);
        let running = self.requests.kv_blocks_of_running();
        self.missing_layer_blocks.retain(|id| running.contains(id));
        for id in kv_blocks.into_iter().filter(|id| !running.contains(id)) {
            if let Some(slot) = self.kv_blocks.set_staging_slot(id, None) {
                self.missing_layer_blocks.recheck(id);
                self.layer_offload.vacate(slot);
            }
        }
    }

    /// Moves buffers out of draining KV chunks. Their contents are fetched again.
    ///
    /// # Panics
    /// If a fetch is in progress, or fewer blocks are free.
    pub fn move_buffers(&mut self) {
        assert!(self.layer_offload.fetching.is_empty(), "buffers move while nothing is copied into them");
        let draining = self.chunk_pool.draining().clone();
        let mut moved = Vec::new();
        for layer_block in self.layer_offload.buffers.iter_mut().flatten() {
            if draining.contains(&self.chunk_pool.kv_chunk_of(*layer_block)) {
                moved.push(*layer_block);
                *layer_block = self.chunk_pool.take_buffer(1)[0];
            }
        }
        moved.sort_unstable();
        self.chunk_pool.give(&moved);
        self.layer_offload.table = Arc::default();
        self.layer_offload.forget_fetches();
        let staged: BTreeSet<_> =
            self.layer_offload.staging_slots.iter().flatten().map(|staged| staged.kv_block).collect();
        self.requests.touch(&staged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::KvChunkId;
    use crate::kv::admissions::AdmissionEffects;
    use crate::kv::layer_offload::Placement;
    use crate::slots::Generations;
    use crate::step_model::Layout;

    /// The staging slots of a request with two KV blocks of four layers, of which the first `offloaded` go out through
    /// one buffer. Of the KV chunks, each with space for one KV block, two have its KV.
    fn slots(kv_chunks: u32, offloaded: usize) -> u32 {
        let (request, mut generations) = (RequestId(1), Generations::default());
        let mut kv = Kv::new(4, kv_chunks, 4, 8, true);
        (0..kv_chunks).for_each(|chunk| kv.chunk_pool_mut().back(KvChunkId(chunk)));
        let prefix = kv.cached_prefix(1, &[]);
        kv.open(request, &prefix);
        kv.allocate(&[(request, 2)], &mut generations);
        (0..2).for_each(|_| kv.on_tokens_computed(request, &[7; 16]));
        let moving: Vec<_> = [0, 1, 2].map(LayerId).to_vec();
        let sets = vec![moving[..offloaded].to_vec()];
        let of = [(request, 0)].into();
        kv.place(Placement { layout: Layout { moving, beta: 1 }, sets, of });
        for _ in 0..2 {
            let none = AdmissionEffects::default();
            let written = kv.plan_write_back(u32::MAX, (false, true), &none, &mut generations);
            kv.finish_write_back(&written, true);
        }
        kv.evict_staged();
        kv.check();
        kv.layer_offload().slot_counts().0
    }

    #[test]
    fn kv_block_is_staged_if_it_frees_blocks_and_its_buffers_have_space() {
        assert_eq!([1, 2, 3].map(|offloaded| slots(3, offloaded)), [0, 2, 2], "one layer frees nothing");
        assert_eq!(slots(2, 3), 0, "no block is free for the buffer");
    }
}

//! Assigns staging slots, evicts the staged blocks and manages the buffers.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::{StagingSlot, group_by_slots};
use crate::ids::{KvBlockId, LayerId, RequestId};
use crate::kv::Kv;
use crate::layer_set::LayerSet;

impl Kv {
    /// Stages the incomplete KV blocks of running requests if the placement allows it and there is space; otherwise
    /// queues them for swap-in.
    pub(super) fn restage(&mut self) {
        let users: Vec<_> = (self.sequences.iter().filter(|(_, s)| !s.suspended))
            .flat_map(|(request, s)| {
                let at = |(at, id): (usize, &KvBlockId)| (*id, (*request, at as u32));
                s.kv_blocks.iter().enumerate().map(at)
            })
            .collect();
        for (kv_block, user) in users {
            if self.kv_blocks.is_whole(kv_block) || self.kv_blocks.get(kv_block).staging_slot().is_some() {
                continue;
            }
            self.stage_resident(kv_block, user);
            self.missing_layer_blocks.add(kv_block);
        }
    }

    /// Stages a full KV block of a running request if its set allows it and there is space.
    fn stage_resident(&mut self, kv_block: KvBlockId, user: (RequestId, u32)) {
        let full = user.1 < self.full_kv_blocks(user.0);
        if let Some(set) = self.resident_set(kv_block, user.0).filter(|_| full) {
            self.stage(StagingSlot { kv_block, set, user });
        }
    }

    /// Returns the part of the request's set that is in the host tier, if the KV block may be staged with it.
    pub(super) fn resident_set(&mut self, kv_block: KvBlockId, request: RequestId) -> Option<u16> {
        let set = *self.layer_offload.placement.of.get(&request)?;
        if self.chunk_pool.free_layer_blocks() < u32::from(self.layer_offload.placement.layout.beta) {
            return None;
        }
        let members =
            self.layer_offload.sets[usize::from(set)].members & self.kv_blocks.get(kv_block).hosted_layers;
        let kept = self.layer_offload.set_index(members);
        self.saves_layer_blocks(kept).then_some(kept)
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
        let unstaged: Vec<_> = self.unstaged_kv_blocks(request).collect();
        for (at, kv_block) in &unstaged {
            self.stage_resident(*kv_block, (request, *at as u32));
        }
        if !unstaged.is_empty() {
            // What was fetched early lacks the new slots.
            self.forget_fetches();
        }
        !unstaged.is_empty()
    }

    /// Returns the request's KV blocks that are neither complete on the device nor staged.
    fn unstaged_kv_blocks(&self, request: RequestId) -> impl Iterator<Item = (usize, KvBlockId)> + '_ {
        let kv_blocks = self.sequences.get(&request).into_iter().flat_map(|sequence| &sequence.kv_blocks);
        let unstaged = |id: &KvBlockId| {
            !self.kv_blocks.is_whole(*id) && self.kv_blocks.get(*id).staging_slot().is_none()
        };
        kv_blocks.copied().enumerate().filter(move |(_, id)| unstaged(id))
    }

    /// Returns the device blocks that the request needs to continue with these layers offloaded: its missing blocks,
    /// except that full KV blocks with these layers in the host tier need only a staging slot.
    pub fn layer_blocks_to_join(&self, request: RequestId, set: &[LayerId]) -> u32 {
        let (full, set): (_, LayerSet) = (self.full_kv_blocks(request), set.iter().copied().collect());
        let cost = |(at, id): (usize, KvBlockId)| {
            let (missing, staged) = self.needs_of(id, if (at as u32) < full { set } else { LayerSet::NONE });
            missing.len() + staged
        };
        self.unstaged_kv_blocks(request).map(cost).sum()
    }

    /// Whether a staging slot with this set takes no more blocks than it frees at once, even if the buffers' next
    /// fetches are already ordered: those keep as many blocks as there are buffers, and the buffers take as many. A
    /// request alone therefore always fits.
    pub(super) fn saves_layer_blocks(&self, set: u16) -> bool {
        let set = self.layer_offload.set(set);
        !set.is_empty() && set.len() >= 2 * usize::from(self.layer_offload.placement.layout.beta)
    }

    pub(super) fn stage(&mut self, staged: StagingSlot) {
        let at = self.layer_offload.staging_slots.len() as u32;
        self.layer_offload.staging_slots.push(Some(staged));
        self.kv_blocks.set_staging_slot(staged.kv_block, Some(at));
        self.missing_layer_blocks.recheck(staged.kv_block);
        for buffer in &mut self.layer_offload.buffers {
            if buffer.len() <= at as usize {
                buffer.extend(self.chunk_pool.take_buffer(1));
            }
        }
        self.history.word(u64::from(staged.kv_block.0) << 16 ^ u64::from(staged.set));
    }

    pub(super) fn release_buffers(&mut self) {
        for buffer in core::mem::take(&mut self.layer_offload.buffers) {
            self.chunk_pool.give(&buffer);
        }
    }

    /// Marks the table entries of every request that uses one of these KV blocks for an update.
    pub(in crate::kv) fn touch(&mut self, kv_blocks: &BTreeSet<KvBlockId>) {
        if kv_blocks.is_empty() {
            return;
        }
        let last = kv_blocks.last().map_or(0, |id| id.index());
        let mut marked = vec![false; last + 1];
        kv_blocks.iter().for_each(|id| marked[id.index()] = true);
        for (request, sequence) in &self.sequences {
            let is_marked = |id: &KvBlockId| marked.get(id.index()) == Some(&true);
            let touched = sequence.kv_blocks.iter().enumerate().filter(|(_, id)| is_marked(id));
            self.dirty.extend(touched.map(|(at, _)| (*request, at as u32)));
        }
    }

    /// Stages KV blocks whose copies are complete, as long as there are blocks for the buffers; then evicts the blocks
    /// that every later step reads from a buffer.
    pub fn evict_staged(&mut self) {
        let beta = u32::from(self.layer_offload.placement.layout.beta);
        while let Some(staged) = self.layer_offload.ready.pop_front() {
            let kv_block = self.kv_blocks.find(staged.kv_block);
            let runs = self.sequences.get(&staged.user.0).is_some_and(|user| !user.suspended);
            let fits = runs
                && kv_block.is_some_and(|kv_block| kv_block.refs > 0 && kv_block.staging_slot().is_none());
            if !fits
                || !self.kv_blocks.is_whole(staged.kv_block)
                || !self.missing_on_host(staged.kv_block, staged.set).is_empty()
                || !self.saves_layer_blocks(staged.set)
            {
                continue;
            }
            if self.chunk_pool.free_layer_blocks() < beta {
                self.layer_offload.ready.push_front(staged);
                break;
            }
            self.stage(staged);
        }
        self.evict_staged_layer_blocks();
    }

    /// Returns, for each moving layer, the staging slots that its next ordered fetch covers; all slots if none is
    /// ordered.
    fn covered_by_all(&self) -> Vec<u32> {
        let stream = &self.layer_offload;
        let mut covered = vec![stream.staging_slots.len() as u32; stream.placement.layout.moving.len()];
        // Later fetches cover more.
        let window = stream.slots.window().map(|instance| instance.generation);
        for (covered, known) in covered.iter_mut().zip(stream.covered.walk(window)) {
            *covered = known.unwrap_or(*covered);
        }
        covered
    }

    /// Evicts blocks by groups of layers, and slot by slot within a group, because a KV block's blocks are mostly
    /// adjacent.
    fn evict_staged_layer_blocks(&mut self) {
        let (covered, stream) = (self.covered_by_all(), &mut self.layer_offload);
        // Most layers share a range of slots; layers whose next fetch was ordered early have a shorter one.
        let groups =
            group_by_slots(stream.placement.layout.moving.iter().zip(covered).map(|(layer, covered)| {
                (*layer, [core::mem::replace(&mut stream.evicted_slots[layer.index()], covered), covered])
            }));
        let mut left = Vec::new();
        for ([from, to], layers) in groups {
            for staged in stream.staging_slots[from as usize..to as usize].iter().flatten() {
                let members = stream.sets[usize::from(staged.set)].members;
                self.kv_blocks.take_layers(staged.kv_block, members & layers, &mut left);
            }
        }
        self.chunk_pool.give(&left);
    }

    /// Suspends the request: KV blocks that no running request uses lose their staging slots.
    pub fn suspend(&mut self, request: RequestId) {
        self.layer_offload.forget_request(request);
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        (sequence.suspended, sequence.written) = (true, 0);
        let kv_blocks = sequence.kv_blocks.clone();
        let running = self.kv_blocks_of_running();
        self.missing_layer_blocks.retain(|id| running.contains(id));
        for id in kv_blocks.into_iter().filter(|id| !running.contains(id)) {
            if let Some(slot) = self.kv_blocks.set_staging_slot(id, None) {
                self.missing_layer_blocks.recheck(id);
                self.layer_offload.vacate(slot);
            }
        }
    }

    /// Whether draining KV chunks contain blocks of a buffer.
    pub fn drains_buffers(&self) -> bool {
        let kv_chunks = self.chunk_pool.draining();
        let mut layer_blocks = self.layer_offload.buffers.iter().flatten();
        !kv_chunks.is_empty()
            && layer_blocks.any(|layer_block| kv_chunks.contains(&self.chunk_pool.kv_chunk_of(*layer_block)))
    }

    /// Moves buffers out of draining KV chunks. Their contents are fetched again. Returns whether all fitted.
    ///
    /// # Panics
    /// If a fetch is in progress.
    pub fn move_buffers(&mut self) -> bool {
        assert!(self.layer_offload.fetching.is_empty(), "buffers move while nothing is copied into them");
        let draining = self.chunk_pool.draining().clone();
        let mut moved = Vec::new();
        for layer_block in self.layer_offload.buffers.iter_mut().flatten() {
            if draining.contains(&self.chunk_pool.kv_chunk_of(*layer_block)) {
                if self.chunk_pool.free_layer_blocks() == 0 {
                    break;
                }
                moved.push(*layer_block);
                *layer_block = self.chunk_pool.take_buffer(1)[0];
            }
        }
        moved.sort_unstable();
        self.chunk_pool.give(&moved);
        self.layer_offload.table = Arc::default();
        self.forget_fetches();
        let staged: BTreeSet<_> =
            self.layer_offload.staging_slots.iter().flatten().map(|staged| staged.kv_block).collect();
        self.touch(&staged);
        !self.drains_buffers()
    }

    /// Returns the blocks of staged KV blocks that are not on the device.
    pub fn offloaded_layer_blocks(&self) -> u32 {
        self.kv_blocks.offloaded_layers()
    }

    /// Returns the number of used and of free staging slots.
    pub fn slot_counts(&self) -> (u32, u32) {
        (
            self.layer_offload.staging_slots.len() as u32 - self.layer_offload.free_slots,
            self.layer_offload.free_slots,
        )
    }

    /// Returns the number of full KV blocks of a request.
    pub fn full_kv_blocks(&self, request: RequestId) -> u32 {
        self.sequences.get(&request).map_or(0, |sequence| sequence.full)
    }
}

//! Offloads the KV of a prefill to the host tier during its computation, layer by layer (eLLM 4.4.2).
//!
//! KV blocks of such a prompt have no device blocks of their own, but a host place and a staging slot. The step that
//! computes them writes each layer's part into the layer's buffer. A *spill* copies it out after the engine, before the
//! next fetch into this buffer. Later steps of the same prompt fetch the KV blocks like other staged ones.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::spills::{SpillCopy, Spills};
use super::{LayerOffload, Placement, StagingSlot};
use crate::action::{LayerBlockSwap, Spill};
use crate::ids::{ChunkId, Generation, HostBlockId, KvBlockId, LayerBlockId, LayerId, RequestId};
use crate::kv::Kv;
use crate::kv::blocks::{HostLocation, KvBlocks};
use crate::kv::requests::Requests;
use crate::slots::{CopyProgress, Generations};
use crate::step_model::Layout;

impl LayerOffload {
    /// Whether new KV blocks of the request are offloaded.
    pub fn is_spilling_prefill(&self, request: RequestId) -> bool {
        self.prefill_spills.has_prompt(request)
    }

    /// Returns the requests with offloaded prefills.
    pub fn spilling_requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.prefill_spills.prompts().map(|(request, _)| request)
    }

    /// Returns the placement in force with support for offloaded prefills: its first set is all layers.
    pub fn placement_with_prefills(&self, layout: Layout) -> Placement {
        let now = &self.placement;
        let beta = if now.layout.moving.is_empty() { layout.beta } else { now.layout.beta };
        let sets = core::iter::once(layout.moving.clone()).chain(now.sets.iter().cloned()).collect();
        let of = now.of.iter().map(|(request, set)| (*request, set + 1)).collect();
        Placement { layout: Layout { beta, ..layout }, sets, of }
    }

    /// Returns the placement in force without support for offloaded prefills, with additional sets of offloaded layers.
    pub fn placement_without_prefills(&self, coming: &[Vec<LayerId>]) -> Placement {
        let now = &self.placement;
        let others = now.of.iter().filter(|(_, set)| **set > 0);
        let of: BTreeMap<_, _> = others.map(|(request, set)| (*request, set - 1)).collect();
        let sets: Vec<_> = now.sets[1..].iter().chain(coming).cloned().collect();
        let moving: BTreeSet<_> = sets.iter().flatten().copied().collect();
        let layout = Layout { moving: moving.into_iter().collect(), beta: now.layout.beta };
        if layout.moving.len() < 2 * usize::from(layout.beta) {
            return Placement::default();
        }
        Placement { layout, sets, of }
    }

    /// Whether the placement supports offloaded prefills.
    pub fn places_prefills(&self) -> bool {
        self.placement.sets.first().is_some_and(|set| set.len() == self.layers as usize)
    }

    /// Whether the next or current step writes KV blocks in buffers.
    pub fn writes_to_buffers(&self) -> bool {
        self.prefill_spills.first_slot().is_some()
    }

    /// Whether only offloaded prefills are staged, so that other steps do not use the buffers.
    pub fn stages_prefills_only(&self) -> bool {
        self.spilling_requests().next().is_some()
            && self.placement.of.keys().all(|id| self.is_spilling_prefill(*id))
    }

    /// Whether KV blocks of a finished step are still being copied to the host tier.
    pub fn has_pending_spills(&self) -> bool {
        self.prefill_spills.first_slot().is_none() && !self.prefill_spills.kv_blocks().is_empty()
    }

    /// Whether the KV block's only certain copy is in the buffers.
    pub(in crate::kv) fn is_spilling(&self, id: KvBlockId) -> bool {
        self.prefill_spills.kv_blocks().contains(&id)
    }

    /// Begins a step, new or repeated: every layer's part of its KV blocks must be copied. Returns their number;
    /// `None`: it writes none into buffers.
    pub(super) fn begin_spills(&mut self, generations: &mut Generations) -> Option<u32> {
        let from = self.prefill_spills.first_slot()?;
        let slots = self.staging_slots.len() as u32;
        // The step writes these KV blocks to the buffers, so the tables must name the buffers.
        for layer in &self.placement.layout.moving {
            self.slots_in_tables[layer.index()] = slots;
        }
        let slot = |layer| self.placement.layout.slot_of(layer).expect("a layer of a lease moves");
        let copy = |(layer, reads)| {
            let progress = CopyProgress::Due;
            SpillCopy { layer, buffer: slot(layer), reads, name: generations.next_generation(), progress }
        };
        let copies = self.slots.lease().map(copy).collect();
        self.prefill_spills.begin(copies);
        Some(slots - from)
    }

    /// Returns the due spills in layer order, each with its generation, and marks them as ordered.
    fn take_due_spills(
        &mut self,
        kv_blocks: &KvBlocks,
        chunk: impl Fn(LayerBlockId) -> ChunkId,
    ) -> Vec<(Generation, Spill)> {
        let mut due = Vec::new();
        for copy in self.prefill_spills.take_due() {
            self.record_fetch(copy.name);
            due.push((copy.name, self.spill(copy, kv_blocks, &chunk)));
        }
        due
    }

    fn spill(&self, copy: SpillCopy, kv_blocks: &KvBlocks, chunk: impl Fn(LayerBlockId) -> ChunkId) -> Spill {
        let buffer = &self.buffers[copy.buffer.index()];
        let swap = |id: &KvBlockId| {
            let slot = kv_blocks.get(*id).staging_slot()?;
            let HostLocation { place, generation } = kv_blocks.get(*id).host_location?;
            let (layer_block, host) = (buffer[slot as usize], place * self.layers + u32::from(copy.layer.0));
            Some(LayerBlockSwap {
                layer_block,
                chunk: chunk(layer_block),
                host: HostBlockId(host),
                generation,
            })
        };
        let layer_blocks = self.prefill_spills.kv_blocks().iter().filter_map(swap).collect();
        Spill { layer: copy.layer, buffer: copy.buffer.0, after: copy.reads, layer_blocks }
    }

    /// Records that the host tier has this layer of the KV blocks being written.
    fn record_host_copies(&self, layer: LayerId, kv_blocks: &mut KvBlocks) {
        for id in self.prefill_spills.kv_blocks() {
            kv_blocks.get_mut(*id).hosted_layers.insert(layer);
        }
    }

    /// Returns the KV blocks that offloaded prefills still need: each takes a host place.
    pub fn kv_blocks_to_spill(&self, requests: &Requests) -> u32 {
        let left = |(request, kv_blocks): (RequestId, u32)| {
            kv_blocks.saturating_sub(requests.kv_blocks(request).len() as u32)
        };
        self.prefill_spills.prompts().map(left).sum()
    }

    /// Offloaded prefills, and their copies in progress.
    pub(in crate::kv) fn spills(&self) -> &Spills {
        &self.prefill_spills
    }
}

impl Kv {
    /// Offloads all further KV blocks of the request, `kv_blocks` in total with the existing ones. The first set of the
    /// placement in force must be all layers.
    pub fn start_prefill_spill(&mut self, request: RequestId, kv_blocks: u32) {
        assert!(self.layer_offload.places_prefills(), "the first set of the placement is all layers");
        self.register(request, 0);
        // Content that is only in buffers must not be shared.
        self.requests.get_mut(request).set_chain(None);
        self.layer_offload.prefill_spills.add_prompt(request, kv_blocks);
        self.history.word(request.0 << 32 ^ u64::from(kv_blocks));
    }

    /// Ends the offload of prefills; existing offloaded KV stays where it is.
    pub fn disable_prefill_spill(&mut self) {
        self.layer_offload.prefill_spills.disable_prefill_spill();
    }

    /// Allocates new KV blocks of an offloaded prefill in the host tier.
    ///
    /// # Panics
    /// If the host tier has no place for one.
    pub(in crate::kv) fn allocate_out(
        &mut self,
        request: RequestId,
        count: u32,
        generations: &mut Generations,
    ) {
        for _ in 0..count {
            let id = self.kv_blocks.add();
            self.reserve_host_place(id, generations)
                .expect("the host tier has a place for each KV block that goes out");
            let at = self.of(request).kv_blocks();
            self.append(request, id);
            let slot = self.layer_offload.staging_slots.len() as u32;
            self.layer_offload.prefill_spills.add_kv_block(id, slot);
            self.add_reference(id);
            self.stage(StagingSlot { kv_block: id, set: 0, user: (request, at) });
        }
    }

    /// Returns the due spills in layer order, each with its generation, and marks them as ordered.
    pub fn take_due_spills(&mut self, chunk: impl Fn(LayerBlockId) -> ChunkId) -> Vec<(Generation, Spill)> {
        self.layer_offload.take_due_spills(&self.kv_blocks, chunk)
    }

    /// Handles the end of a spill. A dropped one (`Err(true)`) is due again if its step will be repeated. Returns the
    /// number of requests that lose KV with it.
    pub fn spilled(&mut self, name: Generation, end: Result<(), bool>, repeated: bool) -> u32 {
        self.layer_offload.fetching.retain(|known| *known != name);
        let (mut lost, again) = (Vec::new(), repeated && end == Err(true));
        if let Some(layer) = self.layer_offload.prefill_spills.on_ended(name, again) {
            if end.is_ok() {
                self.layer_offload.record_host_copies(layer, &mut self.kv_blocks);
                self.history.word(!u64::from(layer.0));
            } else if !again {
                // The host blocks have unknown content. Until their requests let them go, they count as copies, as do
                // the device blocks of a failed swap-in.
                self.layer_offload.record_host_copies(layer, &mut self.kv_blocks);
                lost = self.invalidate_spills();
            }
        }
        self.end_spills();
        self.layer_offload.release_pinned_places(&mut self.host_pool);
        self.lost_requests.add_new(lost)
    }

    /// Ends the step: its KV blocks become ordinary staged KV blocks once their copies have ended.
    pub(super) fn close_spills(&mut self) {
        if self.layer_offload.prefill_spills.close() {
            self.end_spills();
        }
    }

    /// Abandons a step that will not be repeated: the KV blocks that it should have written are lost. Returns the
    /// number of requests that lose KV.
    pub fn abandon_spills(&mut self) -> u32 {
        if self.layer_offload.prefill_spills.first_slot().is_none() {
            return 0;
        }
        let lost = self.invalidate_spills();
        self.close_spills();
        self.lost_requests.add_new(lost)
    }

    fn invalidate_spills(&mut self) -> Vec<RequestId> {
        self.invalidate(&self.layer_offload.prefill_spills.kv_blocks().iter().copied().collect())
    }

    fn end_spills(&mut self) {
        for id in self.layer_offload.prefill_spills.take_written() {
            self.release_reference(id);
        }
    }
}

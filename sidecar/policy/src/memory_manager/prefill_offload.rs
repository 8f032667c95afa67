//! Computes prompts without space for their KV: it goes to the host tier layer by layer, and returns when the request
//! continues (eLLM 4.4.2). Algorithm 2 sizes the part of the tier that prompts may use.

use super::MemoryManager;
use super::kv_placement::buffers;
use crate::geometry::StepShape;
use crate::ids::{LayerId, RequestId};
use crate::kv::admissions::AdmissionEffects;
use crate::kv::layer_offload::Placement;
use crate::reason::Reason;
use crate::step_model::Layout;

impl MemoryManager {
    /// Blocks in activation chunks that a step of `tokens` leaves idle (eLLM's inflation).
    pub(super) fn inflatable_layer_blocks(&self, tokens: u32) -> u32 {
        let Some(kept) = self.sizes.activation_kept.filter(|_| !self.in_backoff()) else { return 0 };
        let shape =
            StepShape { tokens: tokens.clamp(1, self.params.max_step.tokens), ..self.params.max_step };
        let needed = self.geometry.chunks_for(self.geometry.activation.bytes(shape)).max(kept);
        let idle = self.chunks.activation_chunks().saturating_sub(needed);
        let room = self.sizes.kv_limit.saturating_sub(self.kv.chunk_pool().backed() + self.free_kv_chunks());
        idle.min(room) * self.sizes.layer_blocks_per_chunk
    }

    /// `kv_blocks` blocks of a prompt leave the device in time, by the measured link.
    pub(super) fn can_spill_in_time(&self, kv_blocks: u32) -> bool {
        self.offload.write_back.layer_block_ns().is_some()
            && self.offload.write_back.is_fast_enough(kv_blocks * self.kv.layers())
    }

    /// Reserves `kv_blocks` host blocks, evicting host cache if needed. `false` if there are too few, or not yet.
    pub(super) fn reserve_host_places(&mut self, kv_blocks: u32, effects: &AdmissionEffects) -> bool {
        while self.kv.host_room() < kv_blocks {
            let room = self.kv.host_room();
            if !self.kv.evict_from_host_for(effects) {
                return false;
            }
            self.orders.count(Reason::PrefixEvicted);
            if self.kv.host_room() == room {
                return false;
            }
        }
        true
    }

    /// Sends the KV of a new request to the host tier, `kv_blocks` blocks in all.
    ///
    /// # Panics
    /// If a copy into a buffer is under way: the caller asks [`super::AdmissionView::prefill_offload`] or
    /// [`super::AdmissionView::admits_by_prefill_offload`] before.
    pub(super) fn start_prefill_offload(&mut self, request: RequestId, kv_blocks: u32) {
        if !self.kv.places_prefills() {
            self.kv.place(self.kv.placement_with_prefills(self.prefill_layout()));
        }
        self.kv.start_prefill_spill(request, kv_blocks);
    }

    /// Another placement may take effect at once: no copy into a buffer is under way, and none is due.
    pub(super) fn are_buffers_idle(&self) -> bool {
        self.offload.due.is_none() && self.kv.fetches() == 0 && !self.kv.is_fetching_disabled()
    }

    /// All layers, in as many buffers as allowed: no KV of a prompt stays.
    fn prefill_layout(&self) -> Layout {
        let moving = (0..self.sizes.layers).map(LayerId).collect();
        Layout { moving, beta: buffers(usize::from(self.sizes.layers)) }
    }

    /// Layer blocks that a KV block of a prompt takes on the device: one in each buffer.
    pub(super) fn staging_slot_layer_blocks(&self) -> u32 {
        buffers(usize::from(self.sizes.layers)).into()
    }

    /// Layer blocks that a KV block of a prompt takes in the placement that its admission will put in force.
    pub(super) fn spilled_kv_block_layer_blocks(&self) -> u32 {
        let layout = &self.kv.placement().layout;
        if layout.moving.is_empty() { self.staging_slot_layer_blocks() } else { layout.beta.into() }
    }

    /// Nothing is placed while no prompt is offloaded.
    pub(super) fn request_prefill_placement(&mut self) {
        let layout = &self.kv.placement().layout;
        let idle = self.kv.spilling_requests().next().is_none() || !self.kv.places_prefills();
        self.offload.due = (idle && !layout.moving.is_empty()).then(Placement::default);
    }
}

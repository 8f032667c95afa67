//! Which KV may leave the device now.

use crate::ids::{LayerId, RequestId};
use crate::memory_manager::MemoryManager;
use crate::reclaim::ReclaimStep;

/// Which KV may leave the device now: of prompts, of running requests, of paused ones.
#[derive(Clone, Copy, Debug)]
pub struct OffloadView<'a> {
    pub(in crate::memory_manager) manager: &'a MemoryManager,
}

impl<'a> OffloadView<'a> {
    /// While KV is short, admission follows the plan, because a new request can delay every running one.
    pub fn plans_batches(&self) -> bool {
        self.manager.offload.plans_in_force().is_some()
            && self.manager.params.deadlines().is_none()
            && self.manager.params.slo.tbt_ns > 0
    }

    /// The offloaded layers of a waiting request that the placement plan admits. `None`: it admits no such request.
    pub fn admitted_layers(&self, request: RequestId) -> Option<&'a [LayerId]> {
        self.manager.offload.plans.admitted_layers(request)
    }

    /// The requests that the plan adopted last pauses, until [`MemoryManager::take_pauses`].
    pub fn pauses(&self) -> &'a [RequestId] {
        self.manager.offload.plans.pauses()
    }

    /// Prompts without space may be offloaded.
    pub fn offloads_prefills(&self) -> bool {
        self.manager.offload.prompts_in_force().is_some()
    }

    /// After TTFT misses, on-device admissions must leave `step_kv_blocks` free for offloaded prefills (eLLM's theta).
    /// With a buffer of one block, as at the start, all memory is for running requests.
    pub fn reserves_prefill_buffer(&self, step_kv_blocks: u32) -> bool {
        self.manager.offload.prompts_in_force().is_some_and(|buffer| buffer.logical() > 1)
            && self.manager.write_back_is_healthy()
            && self.manager.offload.write_back.is_fast_enough(step_kv_blocks * self.manager.kv.layers())
    }

    /// A pause frees memory soon enough for the requests that continue.
    pub fn can_pause_help(&self) -> bool {
        self.manager.offload.longest_pause_ns().is_some()
            && self.manager.offload.write_back.is_fast_enough(self.manager.kv.layers())
    }

    /// KV of paused requests may leave the device for a change that must happen.
    pub fn can_evict_paused(&self) -> bool {
        self.manager.params.settle() == ReclaimStep::EvictPaused
    }

    /// `kv_blocks` blocks of paused requests can leave the device soon enough for the requests that wait for them.
    pub fn can_free_by_pause(&self, kv_blocks: u32) -> bool {
        let layer_blocks = kv_blocks.saturating_mul(self.manager.kv.layers());
        self.can_pause_help()
            && !self.manager.in_backoff()
            && self.manager.offload.write_back.is_fast_enough(layer_blocks)
    }
}

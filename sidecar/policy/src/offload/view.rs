//! The parts that decisions about offloaded KV read. They change nothing.

use super::Offload;
use super::layouts::buffers;
use crate::chunks::Chunks;
use crate::cost::StepStats;
use crate::geometry::{Geometry, StepShape};
use crate::ids::{LayerId, RequestId};
use crate::kv::Kv;
use crate::params::Params;
use crate::placement_planner::request::PlanAnswer;
use crate::sizes::Sizes;

/// Which KV may leave the device now: of prompts, of running requests, of paused ones.
#[derive(Clone, Copy, Debug)]
pub struct OffloadView<'a> {
    pub(crate) kv: &'a Kv,
    pub(crate) offload: &'a Offload,
    pub(crate) chunks: &'a Chunks,
    pub(crate) step_stats: &'a StepStats,
    pub(crate) params: &'a Params,
    pub(crate) sizes: &'a Sizes,
    pub(crate) geometry: &'a Geometry,
    /// Step boundaries so far.
    pub(crate) boundary: u64,
    /// The backend failed within the back-off.
    pub(crate) in_backoff: bool,
}

impl<'a> OffloadView<'a> {
    /// Waiting requests are admitted by placement plans while KV is short, because a new request can delay every
    /// running one. Under deadline scheduling the scheduler admits, and plans place KV alone.
    pub fn admits_by_plan(&self) -> bool {
        self.offload.plans_in_force().is_some()
            && self.params.deadlines().is_none()
            && self.params.slo.tbt_ns > 0
    }

    /// The offloaded layers of a waiting request that the placement plan admits. `None`: it admits no such request.
    pub fn admitted_layers(&self, request: RequestId) -> Option<&'a [LayerId]> {
        self.offload.plans.admitted_layers(request)
    }

    /// The requests that the plan adopted last pauses, until they are paused
    /// ([`MemoryNotes::pauses_are_made`](crate::memory_manager::MemoryNotes::pauses_are_made)).
    pub fn pauses(&self) -> &'a [RequestId] {
        self.offload.plans.pauses()
    }

    /// Whether this answers the requested plan.
    pub fn expects_plan(&self, answer: &PlanAnswer) -> bool {
        self.offload.expects_plan(answer)
    }

    /// The layers that a plan offloads of a request that it admits.
    pub(crate) fn planned_layers(&self, request: RequestId) -> &'a [LayerId] {
        self.admitted_layers(request).unwrap_or_default()
    }

    /// The layers that a plan offloads of a request that it admits, if the placement in force moves them and may change
    /// now.
    pub(crate) fn joining_layers(&self, request: RequestId) -> Option<&'a [LayerId]> {
        let set = self.admitted_layers(request)?;
        let layout = &self.kv.layer_offload().placement().layout;
        let moves = set.iter().all(|layer| layout.slot_of(*layer).is_some());
        (!set.is_empty() && moves && self.kv.layer_offload().fetches() == 0).then_some(set)
    }

    /// Prompts without space may be offloaded.
    pub fn offloads_prefills(&self) -> bool {
        self.offload.prompts_in_force().is_some()
    }

    /// After TTFT misses, on-device admissions must leave `step_kv_blocks` free for offloaded prefills (eLLM's theta).
    /// With a buffer of one block, as at the start, all memory is for running requests.
    pub fn reserves_prefill_buffer(&self, step_kv_blocks: u32) -> bool {
        self.offload.prompts_in_force().is_some_and(|buffer| buffer.logical() > 1)
            && self.write_back_is_healthy()
            && self.offload.write_back.is_fast_enough(step_kv_blocks * self.kv.layers())
    }

    /// A pause frees memory soon enough for the requests that continue.
    pub fn can_pause_help(&self) -> bool {
        self.offload.longest_pause_ns().is_some() && self.offload.write_back.is_fast_enough(self.kv.layers())
    }

    /// KV of paused requests may leave the device for a transition that must happen.
    pub fn can_evict_paused(&self) -> bool {
        self.offload.longest_pause_ns().is_some() && self.params.cost_rule().evicts_paused_for_debts()
    }

    /// `kv_blocks` blocks of paused requests can leave the device soon enough for the requests that wait for them.
    pub fn can_free_by_pause(&self, kv_blocks: u32) -> bool {
        let layer_blocks = kv_blocks.saturating_mul(self.kv.layers());
        self.can_pause_help() && !self.in_backoff && self.offload.write_back.is_fast_enough(layer_blocks)
    }

    /// No write-back failed within the back-off.
    pub(crate) fn write_back_is_healthy(&self) -> bool {
        self.offload.write_back.is_healthy(self.boundary)
    }

    /// No copy is under way, and every buffer is in use.
    pub(crate) fn is_offload_idle(&self) -> bool {
        self.kv.requests().count() > 0
            || (self.kv.layer_offload().buffer_layer_blocks() == 0
                && self.kv.layer_offload().fetches() == 0
                && !self.kv.transfers().is_writing_back())
    }

    /// The staging slots may be compacted: nothing is copied into a buffer.
    pub(crate) fn can_compact_staging(&self) -> bool {
        self.kv.layer_offload().fetches() == 0
    }

    /// Another placement may take effect at once: no copy into a buffer is under way, and none is due.
    pub(crate) fn are_buffers_idle(&self) -> bool {
        self.offload.due.is_none()
            && self.kv.layer_offload().fetches() == 0
            && !self.kv.layer_offload().is_fetching_disabled()
    }

    /// KV is offloaded, or could be fetched into buffers.
    pub(crate) fn is_placed(&self) -> bool {
        !self.kv.layer_offload().placement().layout.moving.is_empty()
    }

    /// Free chunks that KV may take.
    pub(crate) fn free_kv_chunks(&self) -> u32 {
        self.chunks.free_count().min(self.sizes.kv_limit - self.kv.chunk_pool().backed())
    }

    /// Layer blocks that are free, or would be at no cost.
    pub(crate) fn spare_layer_blocks(&self) -> u32 {
        self.kv.chunk_pool().free_layer_blocks()
            + self.kv.evictable_layer_blocks()
            + self.free_kv_chunks() * self.sizes.layer_blocks_per_chunk
    }

    /// Layer blocks that should be free: the next tokens of the running requests and of `more` requests, and the
    /// reserve.
    pub(crate) fn target_spare_layer_blocks(&self, more: u32) -> u32 {
        (self.running() + more) * self.kv.layers() + self.reserve_layer_blocks()
    }

    /// Fewer layer blocks are free than should be.
    pub(crate) fn kv_is_short(&self) -> bool {
        self.spare_layer_blocks() < self.target_spare_layer_blocks(0)
    }

    /// Running requests.
    pub(crate) fn running(&self) -> u32 {
        self.kv.requests().running().count() as u32
    }

    /// Layer blocks that should be free beyond the next tokens.
    pub(crate) fn reserve_layer_blocks(&self) -> u32 {
        let total = u64::from(self.kv.chunk_pool().total_layer_blocks());
        (total * u64::from(self.params.offload_reserve_permille) / 1000) as u32
    }

    /// All offloaded KV would fit the device and leave twice the blocks that should be free.
    pub(crate) fn all_kv_fits(&self) -> bool {
        let away = self.kv.blocks().offloaded_layers();
        let needed = away.saturating_sub(self.kv.layer_offload().buffer_layer_blocks());
        self.spare_layer_blocks() >= needed.saturating_add(2 * self.target_spare_layer_blocks(0))
    }

    /// Layer blocks in activation chunks that a step of `tokens` leaves idle (eLLM's inflation).
    pub(crate) fn inflatable_layer_blocks(&self, tokens: u32) -> u32 {
        let Some(kept) = self.sizes.activation_kept.filter(|_| !self.in_backoff) else { return 0 };
        let shape =
            StepShape { tokens: tokens.clamp(1, self.params.max_step.tokens), ..self.params.max_step };
        let needed = self.geometry.chunks_for(self.geometry.activation.bytes(shape)).max(kept);
        let idle = self.chunks.activation_chunks().saturating_sub(needed);
        let room = self.sizes.kv_limit.saturating_sub(self.kv.chunk_pool().backed() + self.free_kv_chunks());
        idle.min(room) * self.sizes.layer_blocks_per_chunk
    }

    /// `kv_blocks` blocks of a prompt leave the device in time, by the measured link.
    pub(crate) fn can_spill_in_time(&self, kv_blocks: u32) -> bool {
        self.offload.write_back.layer_block_ns().is_some()
            && self.offload.write_back.is_fast_enough(kv_blocks * self.kv.layers())
    }

    /// KV blocks that prompts still send to the host tier.
    pub(crate) fn kv_blocks_to_spill(&self) -> u32 {
        self.kv.layer_offload().kv_blocks_to_spill(self.kv.requests())
    }

    /// Layer blocks that a KV block of a prompt takes on the device: one in each buffer.
    pub(crate) fn staging_slot_layer_blocks(&self) -> u32 {
        buffers(usize::from(self.sizes.layers)).into()
    }

    /// Layer blocks that a KV block of a prompt takes in the placement that its admission will put in force.
    pub(crate) fn spilled_kv_block_layer_blocks(&self) -> u32 {
        if self.is_placed() {
            self.kv.layer_offload().placement().layout.beta.into()
        } else {
            self.staging_slot_layer_blocks()
        }
    }
}

//! What a step needs, by what it adds and by what its admissions will change.

use super::prepare_plan::{Attempt, StepDemand, Tried};
use super::{MemoryManager, OffloadView, StepNeed};
use crate::ellm::premap_chunks;
use crate::ids::RequestId;
use crate::kv::admissions::{Admission, AdmissionEffects};

/// The need of a step, with the memory that says how many layer blocks and chunks it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct NeedView<'a> {
    memory: OffloadView<'a>,
    need: &'a StepNeed,
}

impl MemoryManager {
    /// The need, with the memory that it is compared with.
    pub(super) fn need_view<'a>(&'a self, need: &'a StepNeed) -> NeedView<'a> {
        NeedView { memory: self.offload_view(), need }
    }

    /// Begins an attempt: what the step needs, and what its admissions will change.
    pub(super) fn attempt(&self, need: &StepNeed) -> Attempt {
        self.need_view(need).attempt()
    }

    /// The most tokens that a step of this need may have while weights load. Their activations fit in free memory; the
    /// largest usual step is no limit. 0 while nothing loads. `need.shape.tokens` is ignored.
    pub fn whole_prompt_tokens(&self, need: &StepNeed) -> u32 {
        if !self.status().weights_loading() || self.in_backoff() {
            return 0;
        }
        let layer_blocks = self.attempt(need).demand.layer_blocks;
        let chunks = self.whole_prompts().max_chunks(layer_blocks).min(self.sizes.activation_wake);
        let bytes = u64::from(chunks) * self.geometry.chunk_bytes;
        self.geometry.activation.max_tokens(bytes, need.shape)
    }
}

impl NeedView<'_> {
    fn attempt(&self) -> Attempt {
        let (kv, geometry) = (self.memory.kv, self.memory.geometry);
        let effects = self.admission_effects();
        let to_load = kv.missing_layer_block_count() + effects.layer_blocks_to_load();
        let demand = StepDemand {
            to_load,
            layer_blocks: self.new_layer_blocks() + to_load + effects.staged_layer_blocks(),
            evictable: kv.evictable_layer_blocks_after(&effects),
            activation: geometry.chunks_for(geometry.activation.bytes(self.need.shape)),
        };
        Attempt { demand, effects, tried: Tried::Nothing }
    }

    fn admission_effects(&self) -> AdmissionEffects {
        let joining = |request| self.memory.joining_layers(request).unwrap_or_default();
        self.memory.kv.admission_effects(&self.need.admit, joining)
    }

    /// Layer blocks that the step's new KV blocks take.
    fn new_layer_blocks(&self) -> u32 {
        let added = self.need.kv_blocks.iter();
        added.map(|(request, count)| count * self.kv_block_layer_blocks(*request)).sum()
    }

    /// Layer blocks that a new KV block of each request would take, of those that run and those that are admitted.
    fn next_step_layer_blocks(&self) -> u32 {
        let admitted = self.need.admit.iter().map(|admission| admission.request);
        let requests = self.memory.kv.requests().running().chain(admitted);
        requests.map(|request| self.kv_block_layer_blocks(request)).sum()
    }

    /// Layer blocks that a new KV block of this request takes on the device.
    pub(super) fn kv_block_layer_blocks(&self, request: RequestId) -> u32 {
        let spills = |admission: &Admission| admission.request == request && admission.spills_prefill();
        if self.need.admit.iter().any(spills) {
            self.memory.spilled_kv_block_layer_blocks()
        } else {
            self.memory.kv.of(request).kv_block_layer_blocks()
        }
    }

    /// Idle activation chunks that an inflation of `chunks` takes in addition, with `activation` chunks for the step
    /// (eLLM 5.1):
    /// every running request is assumed to make one more token, which begins a block at worst. Only idle chunks with
    /// addresses in KV, so that no inflation fails for them.
    pub(super) fn lookahead_chunks(&self, demand: StepDemand, activation: u32, chunks: u32) -> u32 {
        let OffloadView { kv, sizes, params, geometry, .. } = self.memory;
        let per = sizes.layer_blocks_per_chunk;
        let had = kv.chunk_pool().free_layer_blocks() + demand.evictable + chunks * per;
        let wanted = (demand.layer_blocks + self.next_step_layer_blocks())
            .saturating_sub(had.max(demand.layer_blocks))
            .div_ceil(per);
        let idle = self.memory.chunks.activation_chunks().saturating_sub(activation + chunks);
        let room = (sizes.kv_limit - kv.chunk_pool().backed()).saturating_sub(chunks);
        premap_chunks(wanted, params.premap_bytes, geometry.chunk_bytes).min(idle).min(room)
    }
}

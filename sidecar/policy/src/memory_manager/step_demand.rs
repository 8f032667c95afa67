//! What a step needs, by what it adds and by what its admissions will change.

use super::prepare_plan::{Attempt, StepDemand, Tried};
use super::{MemoryManager, StepNeed};
use crate::ellm::premap_chunks;
use crate::ids::RequestId;
use crate::kv::admissions::{Admission, AdmissionEffects};

impl MemoryManager {
    /// Begins an attempt: what the step needs, and what its admissions will change.
    pub(super) fn attempt(&self, need: &StepNeed) -> Attempt {
        let effects = self.admission_effects(need);
        let lacking = self.kv.missing_layer_block_count();
        let to_load = lacking + effects.layer_blocks_to_load();
        let demand = StepDemand {
            to_load,
            layer_blocks: self.new_layer_blocks(need) + to_load + effects.staged_layer_blocks(),
            evictable: self.kv.evictable_layer_blocks_after(&effects),
            activation: self.geometry.chunks_for(self.geometry.activation.bytes(need.shape)),
        };
        Attempt { demand, effects, tried: Tried::Nothing }
    }

    fn admission_effects(&self, need: &StepNeed) -> AdmissionEffects {
        let memory = self.offload_view();
        self.kv.admission_effects(&need.admit, |request| memory.joining_layers(request).unwrap_or_default())
    }

    /// Tokens that a step of this need may have while weights load, whatever the largest usual step is: as many as free
    /// memory holds the activations of. 0 while nothing loads. `need.shape.tokens` is ignored.
    pub fn whole_prompt_tokens(&self, need: &StepNeed) -> u32 {
        if !self.status().weights_loading() || self.in_backoff() {
            return 0;
        }
        let layer_blocks = self.attempt(need).demand.layer_blocks;
        let chunks = self.whole_prompts().max_chunks(layer_blocks).min(self.sizes.activation_wake);
        let bytes = u64::from(chunks) * self.geometry.chunk_bytes;
        self.geometry.activation.max_tokens(bytes, need.shape)
    }

    /// Layer blocks that the step's new KV blocks take.
    fn new_layer_blocks(&self, need: &StepNeed) -> u32 {
        need.kv_blocks.iter().map(|(request, count)| count * self.kv_block_layer_blocks(need, *request)).sum()
    }

    /// Layer blocks that a new KV block of each request would take, of those that run and those that are admitted.
    pub(super) fn next_step_layer_blocks(&self, need: &StepNeed) -> u32 {
        let admitted = need.admit.iter().map(|admission| admission.request);
        let requests = self.kv.requests().running().chain(admitted);
        requests.map(|request| self.kv_block_layer_blocks(need, request)).sum()
    }

    /// Layer blocks that a new KV block of this request takes on the device.
    pub(super) fn kv_block_layer_blocks(&self, need: &StepNeed, request: RequestId) -> u32 {
        let spills = |admission: &Admission| admission.request == request && admission.spills_prefill();
        if need.admit.iter().any(spills) {
            self.offload_view().spilled_kv_block_layer_blocks()
        } else {
            self.kv.of(request).kv_block_layer_blocks()
        }
    }

    /// Idle activation chunks that an inflation of `chunks` takes in addition, with `activation` chunks for the step
    /// (eLLM 5.1):
    /// every running request is assumed to make one more token, which begins a block at worst. Only idle chunks with
    /// addresses in KV, so that no inflation fails for them.
    pub(super) fn lookahead_chunks(
        &self,
        need: &StepNeed,
        demand: StepDemand,
        activation: u32,
        chunks: u32,
    ) -> u32 {
        let per = self.sizes.layer_blocks_per_chunk;
        let had = self.kv.chunk_pool().free_layer_blocks() + demand.evictable + chunks * per;
        let wanted = (demand.layer_blocks + self.next_step_layer_blocks(need))
            .saturating_sub(had.max(demand.layer_blocks))
            .div_ceil(per);
        let idle = self.chunks.activation_chunks().saturating_sub(activation + chunks);
        let room = (self.sizes.kv_limit - self.kv.chunk_pool().backed()).saturating_sub(chunks);
        premap_chunks(wanted, self.params.premap_bytes, self.geometry.chunk_bytes).min(idle).min(room)
    }
}

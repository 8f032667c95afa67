//! Steps of whole prompts while weights load.
//!
//! While layers load, a loaded layer serves all tokens of a prompt, not only those of its first chunk. So a step may
//! then be as long as the activation space holds, under any policy: free chunks and empty KV chunks become activations
//! for it, and are returned at the first boundary at which nothing loads. No request loses by it: no cached block is
//! evicted, no block moves, and KV keeps its guarantee.

use super::prepare_plan::StepDemand;
use super::{MemoryManager, StepNeed};
use crate::change::{Transition, TransitionTarget};
use crate::reason::Reason;

impl MemoryManager {
    /// Every layer has memory and some weights are loading: a step that begins now waits for them.
    pub fn weights_loading(&self) -> bool {
        self.is_loaded() && !self.weights.is_settled() && !self.lacks_weights()
    }

    /// The step under way, or the last one, began while weights were loading: its waits are no stalls, and its times
    /// are no samples.
    pub fn step_waited_for_weights(&self) -> bool {
        self.step.waited_for_weights()
    }

    /// Tokens that a step of this need may have while weights load, whatever the largest usual step is: as many as free
    /// memory holds the activations of. 0 while nothing loads. `need.shape.tokens` is ignored.
    pub fn whole_prompt_tokens(&self, need: &StepNeed) -> u32 {
        if !self.weights_loading() || self.in_backoff() {
            return 0;
        }
        let layer_blocks = self.layer_blocks_of(need);
        let chunks = self.max_activation_chunks(layer_blocks).min(self.sizes.activation_wake);
        let bytes = u64::from(chunks) * self.geometry.chunk_bytes;
        self.geometry.activation.most_tokens(bytes, need.shape)
    }

    /// Activation chunks that a step with these blocks could have.
    fn max_activation_chunks(&self, layer_blocks: u32) -> u32 {
        let held = self.activation_chunks();
        let Some(left) = self.kv.chunk_pool().free_layer_blocks().checked_sub(layer_blocks) else {
            return held;
        };
        let unused = self.kv.chunk_pool().empty().min(left / self.sizes.layer_blocks_per_chunk);
        held + self.chunks.free_count() + unused.min(self.kv_chunks_above_guarantee())
    }

    /// A step with more than the usual activations has them at once or is not run: its gain is not worth memory of a
    /// request. None = it is not run.
    pub(super) fn grow_activations(&self, demand: StepDemand) -> Option<Transition> {
        let held = self.activation_chunks();
        let gains =
            demand.activation > held && demand.activation <= self.max_activation_chunks(demand.layer_blocks);
        let target = TransitionTarget::Activation(demand.activation);
        (self.weights_loading() && !self.in_backoff() && gains)
            .then_some(Transition { target, reason: Reason::WholePrompt })
    }

    /// Activation chunks beyond those of the largest usual step.
    pub(super) fn excess_activations(&self) -> u32 {
        self.activation_chunks().saturating_sub(self.sizes.activation_max)
    }

    /// Returns what [`MemoryManager::grow_activations`] took.
    pub(super) fn shrink_activations(&self) -> Option<Transition> {
        let due = self.excess_activations() > 0 && !self.in_backoff();
        let target = TransitionTarget::Activation(self.sizes.activation_max);
        due.then_some(Transition { target, reason: Reason::WholePrompt })
    }
}

//! Steps of whole prompts while weights load.
//!
//! While layers load, a loaded layer serves all tokens of a prompt, not only those of its first chunk. So a step may
//! then be as long as the activation space holds, under any policy: free chunks and empty KV chunks become activations
//! for it, and are returned at the first boundary at which nothing loads. No request loses by it: no cached block is
//! evicted, no block moves, and KV keeps its guarantee.

use super::MemoryManager;
use super::prepare_plan::StepDemand;
use crate::change::{Transition, TransitionTarget};
use crate::reason::Reason;

impl MemoryManager {
    /// Activation chunks that a step with these blocks could have.
    pub(super) fn max_activation_chunks(&self, layer_blocks: u32) -> u32 {
        let held = self.chunks.activation_chunks();
        let Some(left) = self.kv.chunk_pool().free_layer_blocks().checked_sub(layer_blocks) else {
            return held;
        };
        let unused = self.kv.chunk_pool().empty().min(left / self.sizes.layer_blocks_per_chunk);
        held + self.chunks.free_count() + unused.min(self.kv.chunks_above(self.sizes.kv_guaranteed))
    }

    /// A step with more than the usual activations has them at once or is not run: its gain is not worth memory of a
    /// request. None = it is not run.
    pub(super) fn grow_activations(&self, demand: StepDemand) -> Option<Transition> {
        let held = self.chunks.activation_chunks();
        let gains =
            demand.activation > held && demand.activation <= self.max_activation_chunks(demand.layer_blocks);
        let target = TransitionTarget::Activation(demand.activation);
        (self.timing().weights_loading() && !self.in_backoff() && gains)
            .then_some(Transition { target, reason: Reason::WholePrompt })
    }

    /// Activation chunks beyond those of the largest usual step.
    pub(super) fn excess_activations(&self) -> u32 {
        self.chunks.activation_chunks().saturating_sub(self.sizes.activation_max)
    }

    /// Returns what [`MemoryManager::grow_activations`] took.
    pub(super) fn shrink_activations(&self) -> Option<Transition> {
        let due = self.excess_activations() > 0 && !self.in_backoff();
        let target = TransitionTarget::Activation(self.sizes.activation_max);
        due.then_some(Transition { target, reason: Reason::WholePrompt })
    }
}

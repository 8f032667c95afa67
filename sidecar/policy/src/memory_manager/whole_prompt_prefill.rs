//! Steps of whole prompts behind weights that arrive (DESIGN 6, "Waking").
//!
//! While layers stream in, a layer that has come is of use to all tokens of a prompt, not only to those of its first chunk. So a
//! step may then be as long as the activation space can hold, under any policy: free chunks and empty frames of KV become
//! activations for it, and go back at the first boundary at which nothing arrives. No request is hurt for it: no cached
//! column is given up, no block moves, and KV keeps what is guaranteed.

use alloc::vec::Vec;

use super::reclaim::StepDemand;
use super::{MemoryManager, Prepared, StepNeed};
use crate::action::Action;
use crate::change::{Transition, TransitionTarget};
use crate::reason::Reason;

impl MemoryManager {
    /// Every layer has memory, and the weights of some are on the way: a step that begins now waits for them.
    pub fn weights_loading(&self) -> bool {
        self.is_loaded() && !self.weights.is_settled() && !self.lacks_weights()
    }

    /// The step under way, or the last one, began while weights were on their way: its waits are no stalls, and its times say
    /// nothing of other steps.
    pub fn step_waited_for_weights(&self) -> bool {
        self.step.waited_for_weights()
    }

    /// Tokens that a step of this need may have while weights arrive, whatever the largest usual step is: as many as free
    /// memory holds the activations of. 0 while nothing arrives. `need.shape.tokens` is not looked at.
    pub fn whole_prompt_tokens(&mut self, need: &StepNeed) -> u32 {
        if !self.weights_loading() || self.in_backoff() {
            return 0;
        }
        let blocks = self.blocks_of(need);
        let chunks = self.max_activation_chunks(blocks).min(self.sizes.activation_wake);
        let bytes = u64::from(chunks) * self.geometry.chunk_bytes;
        self.geometry.activation.most_tokens(bytes, need.shape)
    }

    /// Activation chunks that a step which takes so many blocks could have.
    fn max_activation_chunks(&self, blocks: u32) -> u32 {
        let held = self.activation_chunks();
        let Some(left) = self.kv.frames().free_blocks().checked_sub(blocks) else { return held };
        let unused = self.kv.frames().empty().min(left / self.sizes.blocks_per_chunk);
        held + self.chunks.free_count() + unused.min(self.frames_above_guarantee())
    }

    /// A step of more than the usual activations that are not all there. It has them, or it is not run: what it could have
    /// gained is not worth anybody's memory.
    pub(super) fn grow_activations(&mut self, demand: StepDemand, out: &mut Vec<Action>) -> Prepared {
        let short = Prepared::Short { missing_columns: 0, activation: true };
        let held = self.activation_chunks();
        let gains =
            demand.activation > held && demand.activation <= self.max_activation_chunks(demand.blocks);
        if !self.weights_loading() || self.in_backoff() || !gains {
            return short;
        }
        match self.start_transition(
            TransitionTarget::Activation(demand.activation),
            Reason::WholePrompt,
            0,
            out,
        ) {
            Prepared::Short { .. } => short,
            other => other,
        }
    }

    /// Activation chunks beyond those of the largest usual step.
    pub(super) fn excess_activations(&self) -> u32 {
        self.activation_chunks().saturating_sub(self.sizes.activation_max)
    }

    /// The way back of what [`MemoryManager::grow_activations`] took.
    pub(super) fn shrink_activations(&self) -> Option<Transition> {
        let due = self.excess_activations() > 0 && !self.in_backoff();
        let target = TransitionTarget::Activation(self.sizes.activation_max);
        due.then_some(Transition { target, reason: Reason::WholePrompt })
    }
}

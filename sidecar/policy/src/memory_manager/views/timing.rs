//! How long steps take, by measured times.

use crate::memory_manager::{MemoryManager, StepNeed, StepStats};

/// Measured and predicted times of steps.
#[derive(Clone, Copy, Debug)]
pub struct TimingView<'a> {
    pub(in crate::memory_manager) manager: &'a MemoryManager,
}

impl<'a> TimingView<'a> {
    /// Measured times and bandwidth.
    pub fn step_stats(&self) -> &'a StepStats {
        &self.manager.step_stats
    }

    /// Duration of a decode step with its waits for moving layers, by measured times, nanoseconds; 0 while none moves.
    /// Without prompts.
    pub fn streaming_ns(&self) -> u64 {
        self.manager.cost().streaming_ns(self.manager.weights.layout())
    }

    /// Time of the steps over which costs are compared, nanoseconds; 0 = unknown.
    pub fn cost_window_ns(&self) -> u64 {
        self.manager.cost().window_ns()
    }

    /// Tokens that a step of this need may have while weights load, whatever the largest usual step is: as many as free
    /// memory holds the activations of. 0 while nothing loads. `need.shape.tokens` is ignored.
    pub fn whole_prompt_tokens(&self, need: &StepNeed) -> u32 {
        if !self.weights_loading() || self.manager.in_backoff() {
            return 0;
        }
        let layer_blocks = self.manager.layer_blocks_of(need);
        let chunks =
            self.manager.whole_prompts().max_chunks(layer_blocks).min(self.manager.sizes.activation_wake);
        let bytes = u64::from(chunks) * self.manager.geometry.chunk_bytes;
        self.manager.geometry.activation.max_tokens(bytes, need.shape)
    }

    /// Every layer has memory and some weights are loading: a step that begins now waits for them.
    pub fn weights_loading(&self) -> bool {
        self.manager.status().is_loaded()
            && !self.manager.weights.is_settled()
            && !self.manager.status().lacks_weights()
    }

    /// The step under way, or the last one, began while weights were loading: its waits are no stalls, and its times
    /// are no samples.
    pub fn step_waited_for_weights(&self) -> bool {
        self.manager.orders.step.waited_for_weights()
    }
}

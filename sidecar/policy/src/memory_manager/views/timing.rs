//! How long steps take, by measured times.

use crate::cost::CostModel;
use crate::memory_manager::StepStats;
use crate::step_model::Layout;

/// Measured and predicted times of steps.
#[derive(Clone, Copy, Debug)]
pub struct TimingView<'a> {
    pub(in crate::memory_manager) cost: CostModel<'a>,
    /// The layout in force.
    pub(in crate::memory_manager) layout: &'a Layout,
}

impl<'a> TimingView<'a> {
    /// Measured times and bandwidth.
    pub fn step_stats(&self) -> &'a StepStats {
        self.cost.stats
    }

    /// Duration of a decode step with its waits for moving layers, by measured times, nanoseconds; 0 while none moves.
    /// Without prompts.
    pub fn streaming_ns(&self) -> u64 {
        self.cost.streaming_ns(self.layout)
    }

    /// Time of the steps over which costs are compared, nanoseconds; 0 = unknown.
    pub fn cost_window_ns(&self) -> u64 {
        self.cost.window_ns()
    }
}

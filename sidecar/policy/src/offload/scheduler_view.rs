//! The requests of a placement plan, as the scheduler passes them.

use alloc::vec::Vec;

use crate::ids::RequestId;

/// A running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningRequest {
    /// The request.
    pub request: RequestId,
    /// KV blocks that it holds when the next step begins.
    pub kv_blocks: u32,
    /// Tokens that were generated and not delivered yet.
    pub deposit: u32,
    /// It may not be paused.
    pub immune: bool,
}

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    /// The request.
    pub request: RequestId,
    /// KV blocks that it holds once admitted.
    pub kv_blocks: u32,
    /// Tokens that were generated and not delivered yet.
    pub deposit: u32,
    /// It was not paused: plans that admit first-come-first-served admit it even if it makes others late.
    pub fresh: bool,
}

/// All requests of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerView {
    /// In the order of pauses; requests that may not be paused are last.
    pub running: Vec<RunningRequest>,
    /// In the order of admissions.
    pub waiting: Vec<WaitingRequest>,
}

impl SchedulerView {
    pub(crate) fn runners(&self) -> Vec<RequestId> {
        self.running.iter().map(|runner| runner.request).collect()
    }

    pub(crate) fn waiters(&self) -> Vec<RequestId> {
        self.waiting.iter().map(|waiter| waiter.request).collect()
    }
}

//! [`Size`].

use super::tenants::TENANTS;
use crate::policy_comparison::Load;

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of times that bursts cycle through the tenants.
    pub(super) cycles: u32,
    /// Requests of a burst.
    pub(super) requests: u32,
    /// Prompt, tokens.
    pub(super) prompt: u32,
    /// Output, tokens.
    pub(super) output: u32,
}

impl Size {
    /// Of the benchmark.
    pub const FULL: Size = Size { cycles: 3, requests: 6, prompt: 64, output: 96 };

    /// One burst.
    pub fn burst(&self) -> Load {
        let Size { requests, prompt, output, .. } = *self;
        Load { requests, concurrency: requests, prompt, output }
    }

    /// Requests of a run.
    pub fn requests(&self) -> u32 {
        self.cycles * self.requests * TENANTS.len() as u32
    }
}

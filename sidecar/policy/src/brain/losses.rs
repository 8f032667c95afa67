//! Predicted losses of what could be done now ([`crate::loss`]).

use super::Brain;
use crate::geometry::BLOCK_TOKENS;
use crate::loss::Outlook;
use crate::step_model::{Layout, Times, stall_per_token_ns};

impl Brain {
    /// The requests that run, as remedies would hurt them.
    pub(super) fn outlook(&self) -> Outlook {
        let token_ns = self.measures.token_compute_ns().min(u128::from(u64::MAX)) as u64;
        Outlook {
            window_steps: self.params.loss_window_steps,
            step_ns: token_ns,
            requests: (self.kv.runners().count() as u32).max(1),
            tbt_ns: self.params.slo.tbt_ns,
            prefill_token_ns: self.measures.prefill_token_ns(),
        }
    }

    /// Time of the steps over which losses are compared, nanoseconds; 0 = unknown.
    pub fn loss_window_ns(&self) -> u64 {
        let step_ns = self.measures.token_compute_ns().min(u128::from(u64::MAX)) as u64;
        step_ns.saturating_mul(u64::from(self.params.loss_window_steps))
    }

    /// What a token waits for moving layers under this layout, by measured times, nanoseconds.
    pub(super) fn stall_of(&self, layout: &Layout) -> u64 {
        if layout.moving.is_empty() {
            return 0;
        }
        let (compute_ns, transfer_ns) = (self.measures.compute_ns(), self.measures.transfer_ns());
        stall_per_token_ns(&Times { compute_ns: &compute_ns, transfer_ns: &transfer_ns }, layout)
    }

    /// The loss by what tokens wait for moving layers; none as far as the allowance goes.
    pub(super) fn stall_loss(&self, outlook: &Outlook, layout: &Layout) -> u64 {
        let stall_ns = self.stall_of(layout);
        if stall_ns <= self.allowance_ns() { 0 } else { outlook.stalled(stall_ns) }
    }

    /// The loss when requests lose so many chunks of KV that they use and compute it again.
    pub(super) fn dropping(&self, outlook: &Outlook, chunks: u32) -> u64 {
        let blocks = u64::from(chunks) * u64::from(self.sizes.blocks_per_chunk);
        if blocks == 0 {
            return 0;
        }
        let used = u64::from(self.kv.frames().used_blocks().saturating_sub(self.kv.evictable_blocks()));
        let blocks = blocks.min(used);
        let requests = (u64::from(outlook.requests) * blocks).div_ceil(used.max(1)) as u32;
        let tokens = blocks * u64::from(BLOCK_TOKENS) / u64::from(self.kv.layers());
        outlook.recomputed(requests, tokens, 0)
    }
}

//! The cost of reclaim options: tokens not generated in time over the next steps, in thousandths of a token.
//!
//! Options have different effects: a stall delays every token of the batch, a pause stops one request, and a preemption
//! stops one and recomputes its tokens. Over a given window all three are tokens that would have been generated and are
//! not, so they can be compared: the least predicted goodput loss decides.
//!
//! Tokens too late for the objective count as not generated, unless they were too late already.

mod layout_search;
mod model;
pub mod price;
mod step_stats;

pub use layout_search::LayoutSearch;
pub use model::CostModel;
pub(crate) use step_stats::WAITED_PERMILLE;
pub use step_stats::{StepStats, StepTimes};

/// Thousandths of a token.
const MILLI: u128 = 1000;

/// The batch that an option would affect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostContext {
    /// Steps of the window.
    pub window_steps: u32,
    /// Current step time, nanoseconds; 0 = unknown.
    pub step_ns: u64,
    /// Requests in the batch.
    pub requests: u32,
    /// Objective for the time between two tokens, nanoseconds; 0 = none.
    pub tbt_ns: u64,
    /// Step time per prompt token, nanoseconds; 0 = unknown.
    pub prefill_token_ns: u64,
}

impl CostContext {
    /// Returns the loss if every step takes `added_ns` longer. Equals [`CostContext::stall`]'s late tokens if a request
    /// waits and no client has buffered tokens.
    pub fn stalled(&self, added_ns: u64) -> u64 {
        let later_ns = self.step_ns.saturating_add(added_ns);
        if added_ns == 0 {
            return 0;
        }
        if self.tbt_ns > 0 && later_ns > self.tbt_ns && self.step_ns <= self.tbt_ns {
            return self.all();
        }
        part(self.all(), added_ns, later_ns)
    }

    /// Returns the loss if `requests` requests pause for the window; the clients of each read `deposit` buffered tokens
    /// instead.
    pub fn paused(&self, requests: u32, deposit: u32) -> u64 {
        let missing = self.window_steps.saturating_sub(deposit);
        u64::from(requests).saturating_mul(u64::from(missing)).saturating_mul(MILLI as u64)
    }

    /// Returns the loss if `requests` requests pause for the window and `tokens` of their tokens are recomputed, which
    /// delays the others.
    pub fn recomputed(&self, requests: u32, tokens: u64, deposit: u32) -> u64 {
        let work_ns = self.prefill_token_ns.saturating_mul(tokens);
        self.paused(requests, deposit).saturating_add(self.once(work_ns))
    }

    /// Returns the loss of a single delay of the whole batch.
    pub fn once(&self, ns: u64) -> u64 {
        let tokens = u128::from(ns) * u128::from(self.requests) * MILLI;
        tokens.checked_div(u128::from(self.step_ns)).map_or(0, |milli| milli.min(u128::from(u64::MAX)) as u64)
    }

    /// Returns all tokens that the batch generates in the window.
    pub fn all(&self) -> u64 {
        (u128::from(self.window_steps) * u128::from(self.requests) * MILLI) as u64
    }
}

fn part(of: u64, share: u64, whole: u64) -> u64 {
    (u128::from(of) * u128::from(share)).checked_div(u128::from(whole)).map_or(of, |part| part as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: CostContext =
        CostContext { window_steps: 10, step_ns: 100, requests: 4, tbt_ns: 0, prefill_token_ns: 5 };

    #[test]
    fn a_stall_costs_its_share_of_every_step() {
        assert_eq!(BATCH.stalled(0), 0);
        assert_eq!(BATCH.stalled(25), 8_000, "a fifth of 40 tokens");
        assert_eq!(BATCH.stalled(u64::MAX), 40_000, "never more than all");
    }

    #[test]
    fn newly_late_tokens_are_lost() {
        let paced = CostContext { tbt_ns: 120, ..BATCH };
        assert_eq!((paced.stalled(20), paced.stalled(25)), (6_666, 40_000));
        assert_eq!(CostContext { tbt_ns: 90, ..BATCH }.stalled(25), 8_000);
    }

    #[test]
    fn pause_costs_tokens_beyond_deposit() {
        assert_eq!((BATCH.paused(1, 0), BATCH.paused(2, 4), BATCH.paused(1, 30)), (10_000, 12_000, 0));
    }

    #[test]
    fn a_preemption_costs_the_pause_and_the_work() {
        // 60 tokens take 300 ns: three steps of four requests.
        assert_eq!(BATCH.recomputed(1, 60, 0), 10_000 + 12_000);
        let unknown = CostContext { step_ns: 0, ..BATCH };
        assert_eq!((unknown.recomputed(1, 60, 0), unknown.stalled(1)), (10_000, 40_000));
    }
}

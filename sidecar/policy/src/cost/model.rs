//! The cost model: what a layout or a reclaim option costs, by measured times.

use super::{CostContext, StepStats};
use crate::params::Params;
use crate::remap::{Choice, Question, choose_layout};
use crate::step_model::{Layout, Times, stall_per_token_ns};

/// Predictions by measured times under the parameters in force. It is a view: it remembers and changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct CostModel<'a> {
    pub(crate) stats: &'a StepStats,
    pub(crate) params: &'a Params,
}

impl<'a> CostModel<'a> {
    /// The model behind these measurements.
    pub fn new(stats: &'a StepStats, params: &'a Params) -> CostModel<'a> {
        CostModel { stats, params }
    }

    /// Time that a decode token waits for moving layers under `layout`, nanoseconds.
    pub fn stall_ns(&self, layout: &Layout) -> u64 {
        self.with_times(layout, |times| stall_per_token_ns(times, layout))
    }

    /// Duration of a decode step with its waits for moving layers, nanoseconds; 0 while no layer moves.
    pub fn streaming_ns(&self, layout: &Layout) -> u64 {
        self.with_times(layout, |times| {
            times.token_compute_ns().saturating_add(stall_per_token_ns(times, layout))
        })
    }

    fn with_times(&self, layout: &Layout, predict: impl Fn(&Times<'_>) -> u64) -> u64 {
        if layout.moving.is_empty() {
            return 0;
        }
        let (compute_ns, transfer_ns) = (self.stats.compute_ns(), self.stats.transfer_ns());
        predict(&Times { compute_ns: &compute_ns, transfer_ns: &transfer_ns })
    }

    /// The stall of a token that the policy allows, nanoseconds.
    pub fn allowance_ns(&self) -> u64 {
        self.token_share_ns(self.params.stall_allowance_permille.into())
    }

    /// A share of a token's compute, nanoseconds.
    pub fn token_share_ns(&self, permille: u64) -> u64 {
        let token = self.stats.token_compute_ns();
        (token * u128::from(permille) / 1000).min(u128::from(u64::MAX)) as u64
    }

    /// Time of the steps over which costs are compared, nanoseconds; 0 = unknown.
    pub fn window_ns(&self) -> u64 {
        self.step_ns().saturating_mul(u64::from(self.params.cost_window_steps))
    }

    /// Compute of a decode step, nanoseconds; 0 = unknown.
    fn step_ns(&self) -> u64 {
        self.stats.token_compute_ns().min(u128::from(u64::MAX)) as u64
    }

    /// The batch of `requests` running requests, as reclaim options hurt it.
    pub fn context(&self, requests: u32) -> CostContext {
        CostContext {
            window_steps: self.params.cost_window_steps,
            step_ns: self.step_ns(),
            requests: requests.max(1),
            tbt_ns: self.params.slo.tbt_ns,
            prefill_token_ns: self.stats.prefill_token_ns(),
        }
    }

    /// The cost of the waits for moving layers; 0 within the allowance.
    pub fn stall_cost(&self, context: &CostContext, layout: &Layout) -> u64 {
        let stall_ns = self.stall_ns(layout);
        if stall_ns <= self.allowance_ns() { 0 } else { context.stalled(stall_ns) }
    }

    /// The layout that moves `wanted_alpha` layers with the least stall, at most `cap_m` of them (Oneiros 4.3).
    pub fn choose_layout(
        &self,
        current: &Layout,
        wanted_alpha: u16,
        cap_m: u16,
        allowance_ns: u64,
    ) -> Choice {
        let (compute_ns, transfer_ns) = (self.stats.compute_ns(), self.stats.transfer_ns());
        choose_layout(&Question {
            times: &Times { compute_ns: &compute_ns, transfer_ns: &transfer_ns },
            current,
            wanted_alpha,
            cap_m,
            allowance_ns,
            horizon_tokens: u64::from(self.params.revert_patience_steps.max(1)),
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::super::StepTimes;
    use super::*;
    use crate::ids::LayerId;

    /// Four layers of 100 µs of compute each, whose copies take 200 µs.
    fn stats(params: &Params) -> StepStats {
        let mut stats = StepStats::new(params, &[1 << 20; 4]);
        stats.on_step(&StepTimes { decode_only: true, layer_ns: vec![100_000; 4], ..StepTimes::default() });
        stats.copied(1 << 20, 200_000);
        stats
    }

    fn moving(layers: u16) -> Layout {
        let moving: Vec<_> = (0..layers).map(LayerId).collect();
        Layout { beta: u8::from(layers > 0), moving }
    }

    #[test]
    fn resident_layers_wait_for_nothing() {
        let params = Params::default();
        let stats = stats(&params);
        let model = CostModel::new(&stats, &params);
        assert_eq!((model.stall_ns(&moving(0)), model.streaming_ns(&moving(0))), (0, 0));
    }

    #[test]
    fn streaming_step_takes_its_compute_and_its_stall() {
        let params = Params::default();
        let stats = stats(&params);
        let model = CostModel::new(&stats, &params);
        // One slot: the copies of 200 µs and the layers of 100 µs take turns, so a token takes four times 300 µs.
        assert_eq!((model.streaming_ns(&moving(4)), model.stall_ns(&moving(4))), (1_200_000, 800_000));
    }

    #[test]
    fn allowance_is_a_share_of_a_tokens_compute() {
        let params = Params { stall_allowance_permille: 50, cost_window_steps: 10, ..Params::default() };
        let stats = stats(&params);
        let model = CostModel::new(&stats, &params);
        assert_eq!((model.allowance_ns(), model.token_share_ns(1000)), (20_000, 400_000));
    }

    #[test]
    fn stall_costs_nothing_within_the_allowance_and_its_share_of_every_token_above_it() {
        let cost = |stall_allowance_permille| {
            let params = Params { stall_allowance_permille, cost_window_steps: 10, ..Params::default() };
            let stats = stats(&params);
            let model = CostModel::new(&stats, &params);
            [0, 4].map(|layers| model.stall_cost(&model.context(3), &moving(layers)))
        };
        // 800 µs more than 400 µs: two of three tokens of ten steps of three requests, in thousandths.
        assert_eq!(cost(1999), [0, 20_000]);
        assert_eq!(cost(2000), [0, 0]);
    }

    #[test]
    fn empty_batch_counts_as_one_request() {
        let params = Params { cost_window_steps: 10, ..Params::default() };
        let stats = stats(&params);
        let model = CostModel::new(&stats, &params);
        assert_eq!((model.context(0).requests, model.window_ns()), (1, 4_000_000));
    }
}

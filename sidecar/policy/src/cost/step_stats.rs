//! Measured times of steps and copies.

use alloc::vec::Vec;

use crate::ewma::Ewma;
use crate::geometry::{MIB, StepShape};
use crate::linear_fit::LinearFit;
use crate::params::Params;
use crate::peers::time_slice::largest_prefill_tokens;

/// A wait of more than this share of a layer's compute leaves caches and threads cold, so its layer is no sample of
/// T_c. Otherwise each stall would raise T_c, a larger T_c would hide more copies, and those would stall more.
pub(crate) const WAITED_PERMILLE: u64 = 50;

/// The duration of a finished step and of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Its shape.
    pub shape: StepShape,
    /// Every sequence got one token.
    pub decode_only: bool,
    /// Compute time of each layer without waits, nanoseconds.
    pub layer_ns: Vec<u64>,
    /// Wait of each layer for its slot, nanoseconds.
    pub stall_ns: Vec<u64>,
    /// Wait of each layer for its KV, nanoseconds.
    pub kv_stall_ns: Vec<u64>,
    /// The whole step, nanoseconds.
    pub total_ns: u64,
}

/// Averages of measured times; the configured estimates until there are any.
#[derive(Clone, Debug)]
pub struct StepStats {
    slab_bytes: Vec<u64>,
    /// Nanoseconds for 2^20 bytes over the link.
    link: Ewma,
    copied_bytes: u64,
    /// T_c of each layer, decode steps only.
    compute: Vec<Ewma>,
    /// Time that a token adds to a step with prefill, all layers together. Tokens of prompts and of decodes count
    /// alike.
    prefill_token: Ewma,
    /// Time of a decode step outside layers and waits: embeddings, the head, sampling.
    overhead: Ewma,
    /// KV blocks that decode steps read.
    kv_blocks: Ewma,
    /// Compute of a decode step over the KV blocks that it reads, all layers together.
    kv: LinearFit,
    estimated_bytes_per_second: u64,
    estimated_compute_ns: u64,
}

impl StepStats {
    pub(crate) fn new(params: &Params, slab_bytes: &[u64]) -> StepStats {
        StepStats {
            slab_bytes: slab_bytes.to_vec(),
            link: Ewma::default(),
            copied_bytes: 0,
            compute: slab_bytes.iter().map(|_| Ewma::default()).collect(),
            prefill_token: Ewma::default(),
            overhead: Ewma::default(),
            kv_blocks: Ewma::default(),
            kv: LinearFit::default(),
            estimated_bytes_per_second: params.link_bytes_per_second.max(1),
            estimated_compute_ns: params.layer_compute_ns,
        }
    }

    pub(crate) fn copied(&mut self, bytes: u64, duration_ns: u64) {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
        self.timed(bytes, duration_ns);
    }

    /// Records a copy to the device, of any kind.
    pub(crate) fn timed(&mut self, bytes: u64, duration_ns: u64) {
        if bytes > 0 && duration_ns > 0 {
            let ns_per_mib = u128::from(duration_ns) * u128::from(MIB) / u128::from(bytes);
            self.link.observe(ns_per_mib.min(u128::from(u64::MAX)) as u64);
        }
    }

    pub(crate) fn on_step(&mut self, times: &StepTimes) {
        if times.layer_ns.len() != self.compute.len() {
            return;
        }
        if times.decode_only {
            let waits = times.stall_ns.iter().copied().chain(core::iter::repeat(0));
            let samples = times.layer_ns.iter().zip(waits);
            for (average, (&ns, wait_ns)) in self.compute.iter_mut().zip(samples) {
                if wait_ns <= ns / 1000 * WAITED_PERMILLE {
                    average.observe(ns);
                }
            }
            self.overhead.observe(beside_ns(times));
        } else {
            self.prefilled(times);
        }
    }

    /// Records the time of a step with prefill beyond that of a decode step, per token. At least a nanosecond: 0 means
    /// that nothing was measured.
    ///
    /// Before a decode was measured its time counts as that of the tokens, the more of it for each token the fewer there
    /// are. Then a sample only lowers the estimate. Otherwise a step that is cut to a time slice would raise it, the next
    /// step would be shorter for that, and prompts would end up with one token a step.
    fn prefilled(&mut self, times: &StepTimes) {
        let total_ns: u128 = times.layer_ns.iter().copied().map(u128::from).sum();
        let added_ns = total_ns.saturating_sub(self.token_compute_ns());
        let Some(token_ns) = added_ns.checked_div(u128::from(times.shape.tokens)) else { return };
        let token_ns = token_ns.clamp(1, u128::from(u64::MAX)) as u64;
        if self.compute_known() || self.prefill_token.value().is_none_or(|known_ns| token_ns < known_ns) {
            self.prefill_token.observe(token_ns);
        }
    }

    /// Records the KV blocks that a decode step read.
    pub(crate) fn read(&mut self, kv_blocks: u64) {
        self.kv_blocks.observe(kv_blocks);
    }

    /// Records the duration of a decode step that read them.
    pub(crate) fn observe_kv_read(&mut self, kv_blocks: u64, times: &StepTimes) {
        self.kv.observe(kv_blocks, total(&times.layer_ns));
    }

    /// KV blocks behind the averages of compute; none before a step has read any.
    pub fn read_kv_blocks(&self) -> Option<u64> {
        self.kv_blocks.value()
    }

    /// Time of a decode step outside its layers and their waits, nanoseconds; 0 = unknown.
    pub fn overhead_ns(&self) -> u64 {
        self.overhead.value().unwrap_or(0)
    }

    /// Time that each KV block adds to a decode step, nanoseconds; 0 = unknown.
    pub fn kv_block_ns(&self) -> u64 {
        self.kv.per_x()
    }

    /// Time that each token adds to a step with prefill, nanoseconds; 0 = unknown.
    pub fn prefill_token_ns(&self) -> u64 {
        self.prefill_token.value().unwrap_or(0)
    }

    /// Duration of a step with `decodes` decodes and `prefill_tokens` tokens of prompts, nanoseconds, as far as is
    /// known.
    pub fn step_ns(&self, decodes: u32, prefill_tokens: u32) -> u64 {
        // In a step with prompts a decode counts as one token of a prompt; so it does before a decode was measured.
        let decodes = if prefill_tokens == 0 && self.compute_known() { 0 } else { decodes };
        let tokens = u64::from(prefill_tokens) + u64::from(decodes);
        let added_ns = u128::from(self.prefill_token_ns()) * u128::from(tokens);
        (self.decode_step_ns() + added_ns).min(u128::from(u64::MAX)) as u64
    }

    /// The most prompt tokens for a step of at most `max_ns` with `decodes` decodes. At least one; no bound while
    /// nothing was measured.
    pub fn prefill_tokens_within(&self, decodes: u32, max_ns: u64) -> u32 {
        let Some(token_ns) = self.prefill_token.value() else { return u32::MAX };
        let left_ns = u128::from(max_ns).saturating_sub(self.decode_step_ns()) as u64;
        largest_prefill_tokens(token_ns, left_ns).saturating_sub(decodes).max(1)
    }

    /// The same by the time of its tokens alone, without that of a decode step.
    pub fn prefill_tokens_adding(&self, max_ns: u64) -> u32 {
        largest_prefill_tokens(self.prefill_token_ns(), max_ns)
    }

    /// Nanoseconds for 2^20 bytes over the link.
    fn ns_per_mib(&self) -> u64 {
        let estimate = u128::from(MIB) * 1_000_000_000 / u128::from(self.estimated_bytes_per_second);
        self.link.value().unwrap_or(estimate.min(u128::from(u64::MAX)) as u64).max(1)
    }

    /// Bytes copied from host to device since the start.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Bandwidth from host to device, bytes per second.
    pub fn link_bytes_per_second(&self) -> u64 {
        MIB * 1_000_000_000 / self.ns_per_mib()
    }

    /// T_T: time to copy each layer, nanoseconds.
    pub fn transfer_ns(&self) -> Vec<u64> {
        let rate = u128::from(self.ns_per_mib());
        self.slab_bytes.iter().map(|bytes| (u128::from(*bytes) * rate / u128::from(MIB)) as u64).collect()
    }

    /// T_c: each layer's compute in a decode step, nanoseconds; 0 = unknown.
    pub fn compute_ns(&self) -> Vec<u64> {
        self.compute.iter().map(|average| average.value().unwrap_or(self.estimated_compute_ns)).collect()
    }

    /// Compute of a whole token in a decode step, nanoseconds; 0 = unknown.
    pub fn token_compute_ns(&self) -> u128 {
        let layer = |average: &Ewma| average.value().unwrap_or(self.estimated_compute_ns);
        self.compute.iter().map(|average| u128::from(layer(average))).sum()
    }

    /// A step of decodes alone, waits left out, nanoseconds; 0 = unknown.
    pub fn decode_step_ns(&self) -> u128 {
        self.token_compute_ns() + u128::from(self.overhead_ns())
    }

    /// Whether T_c is known, measured or estimated.
    pub fn compute_known(&self) -> bool {
        self.compute.iter().all(|average| average.value().unwrap_or(self.estimated_compute_ns) > 0)
    }

    /// r = T_T / T_c over all layers, permille; none while T_c is unknown.
    pub fn ratio_permille(&self) -> Option<u64> {
        let transfer_ns: u128 = self.transfer_ns().into_iter().map(u128::from).sum();
        let ratio = (transfer_ns * 1000).checked_div(self.token_compute_ns())?;
        Some(ratio.min(u128::from(u64::MAX)) as u64)
    }
}

fn beside_ns(times: &StepTimes) -> u64 {
    let within = [&times.layer_ns, &times.stall_ns, &times.kv_stall_ns].map(|ns| total(ns));
    times.total_ns.saturating_sub(total(&within))
}

fn total(times: &[u64]) -> u64 {
    times.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::geometry::StepShape;

    #[test]
    fn waiting_layer_is_no_compute_sample() {
        let mut measures = StepStats::new(&Params::default(), &[1, 1]);
        let step =
            |layer_ns, stall_ns| StepTimes { decode_only: true, layer_ns, stall_ns, ..Default::default() };
        measures.on_step(&step(vec![100_000, 100_000], vec![0, 5_000]));
        assert_eq!(measures.compute_ns(), [100_000, 100_000], "a short wait is none");
        measures.on_step(&step(vec![100_000, 900_000], vec![0, 100_000]));
        assert_eq!(measures.compute_ns(), [100_000, 100_000]);
        measures.on_step(&step(vec![100_000, 900_000], vec![0, 0]));
        assert_eq!(measures.compute_ns(), [100_000, 200_000], "one eighth of a new sample");
        measures.on_step(&StepTimes { decode_only: false, ..step(vec![1, 1], vec![]) });
        assert_eq!(measures.compute_ns(), [100_000, 200_000], "a prefill is no sample");
    }

    #[test]
    fn time_outside_layers_and_stalls_is_overhead() {
        let mut measures = StepStats::new(&Params::default(), &[1, 1]);
        let step = |decode_only| StepTimes {
            decode_only,
            layer_ns: vec![100, 100],
            stall_ns: vec![0, 7],
            kv_stall_ns: vec![3, 0],
            total_ns: 250,
            ..Default::default()
        };
        measures.on_step(&step(false));
        assert_eq!(measures.overhead_ns(), 0, "a prefill is no sample");
        measures.on_step(&step(true));
        assert_eq!(measures.overhead_ns(), 40);
    }

    #[test]
    fn untimed_copy_counts_bytes_only() {
        let params = Params { link_bytes_per_second: 5 * MIB, ..Params::default() };
        let mut measures = StepStats::new(&params, &[1, 1]);
        measures.copied(MIB, 0);
        assert_eq!((measures.copied_bytes(), measures.link_bytes_per_second()), (MIB, 5 * MIB));
        measures.copied(MIB, 1_000_000_000);
        measures.copied(MIB, 0);
        assert_eq!((measures.copied_bytes(), measures.link_bytes_per_second()), (3 * MIB, MIB));
    }

    fn prefill(tokens: u32, layer_ns: u64) -> StepTimes {
        let shape = StepShape { tokens, sequences: 1, logit_rows: 0 };
        StepTimes { shape, layer_ns: vec![layer_ns; 2], ..Default::default() }
    }

    #[test]
    fn prompt_is_cut_to_remaining_time() {
        let mut measures = StepStats::new(&Params::default(), &[1, 1]);
        assert_eq!(measures.prefill_tokens_within(9, 0), u32::MAX, "nothing was measured");
        let decode = StepTimes {
            decode_only: true,
            layer_ns: vec![100_000; 2],
            total_ns: 250_000,
            ..Default::default()
        };
        measures.on_step(&decode);
        // 250,000 ns whatever the step, and 2,000 for each token.
        measures.on_step(&prefill(100, 200_000));
        assert_eq!(measures.prefill_token_ns(), 2_000);
        assert_eq!((measures.step_ns(9, 0), measures.step_ns(9, 91)), (250_000, 450_000));
        assert_eq!(measures.prefill_tokens_within(9, 450_000), 91, "decodes are tokens too");
        assert_eq!(measures.prefill_tokens_within(9, 449_999), 90);
        assert_eq!(measures.prefill_tokens_within(9, 100), 1, "not even a decode fits");
        measures.on_step(&prefill(100, 600_000));
        assert_eq!(measures.prefill_token_ns(), 3_000, "one eighth of a new sample");
        assert_eq!(measures.step_ns(0, u32::MAX), 250_000 + 3_000 * u64::from(u32::MAX));
    }

    #[test]
    fn constant_part_of_a_step_does_not_shorten_prompts_before_a_decode_was_measured() {
        let mut measures = StepStats::new(&Params::default(), &[1, 1]);
        // 200,000 ns whatever the step, and 1,000 for each token.
        let step = |tokens: u32| prefill(tokens, 100_000 + 500 * u64::from(tokens));
        measures.on_step(&step(100));
        assert_eq!(measures.prefill_token_ns(), 3_000);
        for _ in 0..50 {
            measures.on_step(&step(measures.prefill_tokens_within(0, 150_000)));
        }
        assert_eq!(measures.prefill_tokens_within(0, 150_000), 50, "chunks stay as long");
        measures.on_step(&step(200));
        assert_eq!(measures.prefill_token_ns(), 2_875, "a longer step knows more of a token");
        measures.on_step(&StepTimes { decode_only: true, layer_ns: vec![100_000; 2], ..Default::default() });
        measures.on_step(&step(1));
        assert_eq!(measures.prefill_token_ns(), 2_641, "each step is a sample: one eighth of 1,000");
    }

    #[test]
    fn cheap_prefill_is_measured() {
        let mut measures = StepStats::new(&Params::default(), &[1, 1]);
        measures.on_step(&StepTimes { decode_only: true, layer_ns: vec![100_000; 2], ..Default::default() });
        measures.on_step(&prefill(8, 50_000));
        assert_eq!(measures.prefill_token_ns(), 1);
    }

    #[test]
    fn unmeasured_decode_takes_prompt_token_time() {
        let mut measures = StepStats::new(&Params::default(), &[1, 1]);
        measures.on_step(&prefill(10, 50_000));
        assert_eq!((measures.step_ns(3, 0), measures.step_ns(3, 4)), (30_000, 70_000));
    }
}

//! Measures a served load: throughput, goodput, latencies and memory activity.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_common::statistics::percentile;
use sluice_policy::ids::Nanos;
use sluice_policy::reason::Reason;
use sluice_scheduler::Finish;

use super::config::ServeConfig;
use super::request_slo::RequestSlo;
use crate::gpu::Gpu;
use crate::gpu::tenant::{Instance, RequestOutcome};

/// Results of a run. Times in milliseconds unless the name has another unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServeStats {
    /// Name of the policy.
    pub policy: String,
    /// Requests that arrived.
    pub requests: usize,
    /// Requests with all tokens produced.
    pub completed: usize,
    /// Duration from the start of the load to the end of the run, seconds.
    pub seconds: f64,
    /// Tokens produced.
    pub tokens: u64,
    /// Tokens per second of requests that met both objectives.
    pub goodput: f64,
    /// Tokens per second.
    pub throughput: f64,
    /// Time to first token, P50.
    pub ttft_p50: f64,
    /// Time to first token, P99.
    pub ttft_p99: f64,
    /// Time between two produced tokens, P50.
    pub tbt_p50: f64,
    /// Time between two produced tokens, P99.
    pub tbt_p99: f64,
    /// Share of produced tokens within the objective after the previous one.
    pub tbt_met: f64,
    /// The same for tokens as delivered, paced.
    pub tbt_met_paced: f64,
    /// Mean time per output token of a request, P99.
    pub tpot_p99: f64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of pauses.
    pub pauses: u64,
    /// Tokens computed again after preemptions.
    pub recomputed_tokens: u64,
    /// Number of times that a layer was lent or remapped.
    pub remapped_layers: u64,
    /// Largest number of layers lent or remapped at once in one tenant.
    pub most_remapped: u16,
    /// Seconds that steps waited for moving layers.
    pub stall_s: f64,
    /// Seconds that steps waited for fetched KV.
    pub kv_stall_s: f64,
    /// Seconds that steps waited for loading weights.
    pub arrival_s: f64,
    /// Seconds waited for memory of peers, for own memory that was lent, and then for its layers.
    pub waited_s: (f64, f64, f64),
    /// Bytes into the device and out of it during the load, in 10^9.
    pub link_gb: (f64, f64),
    /// Steps of all tenants.
    pub steps: u64,
    /// Time slices granted.
    pub turns: u64,
    /// Decisions of the policies by reason; reasons without decisions are omitted.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Number of plans found.
    pub plans: usize,
    /// Proven bound by which a step might be faster than its plan, permille: P50, P90 and the largest.
    pub plan_gap_permille: [u32; 3],
    /// Cumulative tokens at equally spaced times: seconds, tokens.
    pub made: Vec<(f64, f64)>,
}

impl ServeStats {
    /// Returns the proven gaps of plans in percent: P50, P90 and the largest.
    pub fn plan_gaps(&self) -> String {
        let percent = self.plan_gap_permille.map(|permille| format!("{:.1}", f64::from(permille) / 10.0));
        if self.plans == 0 { "-".into() } else { percent.join("/") }
    }
}

/// Number of intervals of [`ServeStats::made`].
const POINTS: u64 = 100;

/// Measures a GPU whose load has ended. The load began at `begin`, after `loaded_bytes` on the link.
pub(super) fn measure(case: &ServeConfig, gpu: &Gpu, begin: Nanos, loaded_bytes: (u64, u64)) -> ServeStats {
    let outcomes = || gpu.tenants.iter().flat_map(|tenant| tenant.outcomes.values());
    let seconds = (gpu.now().since(begin) as f64 / 1e9).max(1e-9);
    let tokens: u64 = outcomes().map(|outcome| outcome.token_at.len() as u64).sum();
    let good: usize =
        outcomes().filter(|outcome| meets_slo(outcome, case.slo)).map(|outcome| outcome.token_at.len()).sum();
    let mut ttft: Vec<u64> = outcomes().filter_map(ttft_ns).collect();
    let mut tbt: Vec<u64> = outcomes().flat_map(|outcome| gaps(&outcome.token_at)).collect();
    let mut tpot: Vec<u64> = outcomes().filter_map(tpot_ns).collect();
    let sum = |of: fn(&crate::gpu::tenant::TenantStats) -> u64| {
        gpu.tenants.iter().map(|tenant| of(&tenant.stats)).sum::<u64>()
    };
    let (bytes_in, bytes_out) = gpu.machine.borrow().transferred_bytes();
    ServeStats {
        policy: case.policy.name().to_owned(),
        requests: outcomes().count(),
        completed: outcomes().filter(|outcome| outcome.finish == Some(Finish::Length)).count(),
        seconds,
        tokens,
        goodput: good as f64 / seconds,
        throughput: tokens as f64 / seconds,
        ttft_p50: percentile_ms(&mut ttft, 500),
        ttft_p99: percentile_ms(&mut ttft, 990),
        tbt_p50: percentile_ms(&mut tbt, 500),
        tbt_p99: percentile_ms(&mut tbt, 990),
        tbt_met: attainment(gpu, |outcome| {
            gaps(&outcome.token_at).filter(|gap| *gap > case.slo.tbt_ns).count()
        }),
        tbt_met_paced: attainment(gpu, |outcome| late_tokens(&outcome.token_at, case.slo.tbt_ns)),
        tpot_p99: percentile_ms(&mut tpot, 990),
        preemptions: sum(|tally| tally.preemptions),
        pauses: instances(gpu).map(|instance| instance.driver.scheduler().snapshot().counters.pauses).sum(),
        recomputed_tokens: sum(|tally| tally.recomputed_tokens),
        remapped_layers: sum(|tally| tally.remapped_layers),
        most_remapped: gpu.tenants.iter().map(|tenant| tenant.stats.most_remapped).max().unwrap_or(0),
        stall_s: sum(|tally| tally.stall_ns) as f64 / 1e9,
        kv_stall_s: sum(|tally| tally.kv_stall_ns) as f64 / 1e9,
        arrival_s: sum(|tally| tally.arrival_ns) as f64 / 1e9,
        waited_s: (
            sum(|tally| tally.grant_ns) as f64 / 1e9,
            sum(|tally| tally.revoke_ns) as f64 / 1e9,
            sum(|tally| tally.wake_ns) as f64 / 1e9,
        ),
        link_gb: ((bytes_in - loaded_bytes.0) as f64 / 1e9, (bytes_out - loaded_bytes.1) as f64 / 1e9),
        steps: sum(|tally| tally.steps),
        turns: gpu.granted_slices(),
        reasons: reasons(gpu),
        plans: plan_gaps(gpu).len(),
        plan_gap_permille: [500, 900, 1000]
            .map(|permille| percentile(&mut plan_gaps(gpu), permille).unwrap_or(0)),
        made: tokens_over_time(gpu, begin),
    }
}

/// Returns the share of tokens, except first ones, that were not late; 1 if there are none.
fn attainment(gpu: &Gpu, late: impl Fn(&RequestOutcome) -> usize) -> f64 {
    let outcomes = || gpu.tenants.iter().flat_map(|tenant| tenant.outcomes.values());
    let tokens: usize = outcomes().map(|outcome| outcome.token_at.len().saturating_sub(1)).sum();
    1.0 - outcomes().map(late).sum::<usize>() as f64 / tokens.max(1) as f64
}

fn instances(gpu: &Gpu) -> impl Iterator<Item = &Instance> {
    gpu.tenants.iter().filter_map(|tenant| tenant.instance.as_ref())
}

fn reasons(gpu: &Gpu) -> BTreeMap<&'static str, u64> {
    let all_instances = || gpu.tenants.iter().filter_map(|tenant| tenant.instance.as_ref());
    let counted = |reason: Reason| {
        all_instances()
            .map(|instance| instance.driver.scheduler().manager().figures().counted(reason))
            .sum::<u64>()
    };
    let all = Reason::ALL.iter().map(|reason| (reason.label(), counted(*reason)));
    all.filter(|(_, count)| *count > 0).collect()
}

fn tokens_over_time(gpu: &Gpu, begin: Nanos) -> Vec<(f64, f64)> {
    let span_ns = gpu.now().since(begin).max(1);
    let mut counts = vec![0_u64; POINTS as usize + 1];
    for outcome in gpu.tenants.iter().flat_map(|tenant| tenant.outcomes.values()) {
        for at in &outcome.token_at {
            counts[(u128::from(at.since(begin)) * u128::from(POINTS) / u128::from(span_ns)) as usize] += 1;
        }
    }
    let mut sum = 0;
    let point = |(at, count): (usize, u64)| {
        sum += count;
        (at as f64 * span_ns as f64 / POINTS as f64 / 1e9, sum as f64)
    };
    counts.into_iter().enumerate().map(point).collect()
}

fn ttft_ns(outcome: &RequestOutcome) -> Option<u64> {
    outcome.token_at.first().map(|at| at.since(outcome.arrived))
}

fn tpot_ns(outcome: &RequestOutcome) -> Option<u64> {
    let (first, last) = (outcome.token_at.first()?, outcome.token_at.last()?);
    last.since(*first).checked_div(outcome.token_at.len() as u64 - 1)
}

fn gaps(token_at: &[Nanos]) -> impl Iterator<Item = u64> + '_ {
    token_at.windows(2).map(|pair| pair[1].since(pair[0]))
}

/// Whether the request is complete, its first token met the objective, and at most one gap, or one in a hundred, was
/// too long for the client. Tokens are paced: an early token waits until the interval after the previous one has
/// passed.
fn meets_slo(outcome: &RequestOutcome, slo: RequestSlo) -> bool {
    let in_time = ttft_ns(outcome).is_some_and(|ns| ns <= slo.ttft_ns);
    let late = late_tokens(&outcome.token_at, slo.tbt_ns);
    outcome.finish == Some(Finish::Length) && in_time && late <= (outcome.token_at.len() / 100).max(1)
}

fn late_tokens(token_at: &[Nanos], tbt_ns: u64) -> usize {
    let Some(first) = token_at.first() else { return 0 };
    let (mut delivered, mut late) = (*first, 0);
    for at in &token_at[1..] {
        let due = delivered.plus(tbt_ns);
        late += usize::from(*at > due);
        delivered = due.max(*at);
    }
    late
}

fn plan_gaps(gpu: &Gpu) -> Vec<u32> {
    gpu.tenants.iter().flat_map(|tenant| tenant.plan_gaps.iter().copied()).collect()
}

/// Returns a percentile of nanoseconds in milliseconds; 0 if there are none.
fn percentile_ms(values: &mut [u64], permille: u64) -> f64 {
    percentile(values, permille).unwrap_or(0) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(token_at: &[u64]) -> RequestOutcome {
        let token_at = token_at.iter().map(|at| Nanos(*at)).collect();
        RequestOutcome { token_at, finish: Some(Finish::Length), ..RequestOutcome::default() }
    }

    #[test]
    fn early_tokens_offset_late_one() {
        let at = |token_at: &[u64]| late_tokens(&outcome(token_at).token_at, 10);
        assert_eq!(at(&[0, 1, 2, 3, 40]), 0, "delivered at 10, 20, 30, 40");
        assert_eq!(at(&[0, 1, 2, 3, 41]), 1);
        assert_eq!(at(&[0, 11, 22, 33]), 3);
        assert_eq!(at(&[]), 0);
    }

    #[test]
    fn complete_request_within_both_objectives_meets_slo() {
        let slo = RequestSlo { ttft_ns: 5, tbt_ns: 10 };
        assert!(meets_slo(&outcome(&[5, 10, 26]), slo), "one late token is tolerated");
        assert!(!meets_slo(&outcome(&[5, 16, 27]), slo));
        assert!(!meets_slo(&outcome(&[6, 10, 20]), slo));
        assert!(!meets_slo(&RequestOutcome { finish: None, ..outcome(&[5]) }, slo));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut values: Vec<u64> = (1..=200).rev().map(|ms| ms * 1_000_000).collect();
        assert_eq!((percentile_ms(&mut values, 500), percentile_ms(&mut values, 990)), (100.0, 198.0));
        assert_eq!((percentile_ms(&mut [7_000_000], 990), percentile_ms(&mut [], 990)), (7.0, 0.0));
    }
}

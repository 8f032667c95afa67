//! What the runs show: first that they were what they claim.

use super::super::statistics::middle;
use super::{FIXED, LRU, MRU, Outcome, Runs, Shape};

/// All verdicts, and whether each holds.
pub(super) fn all(runs: &[Runs]) -> Vec<(String, bool)> {
    let mut verdicts: Vec<_> = runs.iter().flat_map(premises).collect();
    verdicts.extend(runs.iter().flat_map(against_fixed));
    verdicts.extend(runs.iter().filter(|runs| runs.shape == Shape::Alternating).flat_map(against_lru));
    let identical = runs.iter().all(tokens_identical);
    verdicts.push(("every rule gave the same tokens".into(), identical));
    verdicts
}

fn premises(runs: &Runs) -> [(String, bool); 2] {
    let load = runs.shape.name();
    let least =
        |outcomes: &[Outcome], figure: fn(&Outcome) -> u64| outcomes.iter().map(figure).min().unwrap_or(0);
    let preempted = least(runs.of(FIXED), |outcome| outcome.preempted);
    let lent = least(runs.of(MRU), |outcome| outcome.chunks_lent);
    [
        (
            format!("{load}: KV was exhausted: fixed partitions preempted {preempted} times or more"),
            preempted > 0,
        ),
        (format!("{load}: neighbours lent {lent} chunks or more under Oneiros"), lent > 0),
    ]
}

fn against_fixed(runs: &Runs) -> [(String, bool); 4] {
    let load = runs.shape.name();
    let times = |figure| middle(&runs.ratios(MRU, FIXED, figure));
    let (goodput, throughput) = (times(|outcome| outcome.goodput), times(|outcome| outcome.throughput));
    let (ttft, tbt) = (times(|outcome| outcome.ttft_p99), times(|outcome| outcome.tbt_p99));
    [
        (
            format!("{load}: goodput {goodput:.2} times that of fixed partitions (median of pairs), above 1"),
            goodput > 1.0,
        ),
        (
            format!("{load}: throughput {throughput:.2} times that of fixed partitions, above 1"),
            throughput > 1.0,
        ),
        (format!("{load}: P99 TTFT {ttft:.2} times that of fixed partitions, below 1"), ttft < 1.0),
        (
            format!("{load}: P99 TBT as delivered {tbt:.2} times that of fixed partitions, at most 1.1"),
            tbt <= 1.1,
        ),
    ]
}

fn against_lru(runs: &Runs) -> [(String, bool); 2] {
    let times = |figure| middle(&runs.ratios(MRU, LRU, figure));
    let (goodput, ttft) = (times(|outcome| outcome.goodput), times(|outcome| outcome.ttft_p99));
    [
        (
            format!("{}: MRU has {goodput:.2} times the goodput of LRU, at least 1", runs.shape.name()),
            goodput >= 1.0,
        ),
        (
            format!("{}: MRU has {ttft:.2} times the P99 TTFT of LRU, at most 1", runs.shape.name()),
            ttft <= 1.0,
        ),
    ]
}

fn tokens_identical(runs: &Runs) -> bool {
    let mut all = runs.outcomes.iter().flatten().map(|outcome| &outcome.outputs);
    let first = all.next();
    all.all(|outputs| Some(outputs) == first)
}

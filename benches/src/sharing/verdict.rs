//! What the runs show: first that they were what they claim.

use super::super::report::Verdict;
use super::super::statistics::middle;
use super::runs::Runs;
use crate::sharing_bench::{FIXED, LRU, MRU, Shape, SharingRunFigures};

/// All verdicts, and whether each holds.
pub(super) fn all(runs: &[Runs]) -> Vec<Verdict> {
    let mut verdicts: Vec<_> = runs.iter().flat_map(premises).collect();
    verdicts.extend(runs.iter().flat_map(against_fixed));
    verdicts.extend(runs.iter().filter(|runs| runs.shape == Shape::Alternating).flat_map(against_lru));
    let identical = runs.iter().all(tokens_identical);
    verdicts.push(("every rule gave the same tokens".into(), identical));
    verdicts
}

fn premises(runs: &Runs) -> [Verdict; 2] {
    let load = runs.shape.name();
    let least = |outcomes: &[SharingRunFigures], figure: fn(&SharingRunFigures) -> u64| {
        outcomes.iter().map(figure).min().unwrap_or(0)
    };
    let preempted = least(runs.of(FIXED), |outcome| outcome.preempted);
    let lent = least(runs.of(MRU), |outcome| outcome.chunks_lent);
    [
        (
            format!("{load}: KV was exhausted: fixed partitions preempted {preempted} times or more"),
            preempted > 0,
        ),
        (format!("{load}: peers lent {lent} chunks or more under Oneiros"), lent > 0),
    ]
}

fn against_fixed(runs: &Runs) -> [Verdict; 4] {
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

fn against_lru(runs: &Runs) -> [Verdict; 2] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::LOADS;
    use crate::sharing_bench::VictimPolicy;
    use crate::sharing_bench::delays;

    fn outcome(rule: VictimPolicy, goodput: f64) -> SharingRunFigures {
        let trades = rule != FIXED;
        SharingRunFigures {
            throughput: goodput,
            goodput,
            ttft_p99: 1000.0 / goodput,
            tbt_p99: 50.0,
            preempted: u64::from(!trades),
            recomputed: 0,
            chunks_lent: u64::from(trades),
            chunks_lent_most: 0,
            layers_lent: 0,
            running: 6,
            copied_bytes: 0,
            delays: delays::read(&[]),
            outputs: vec![vec![1]],
        }
    }

    /// Three repetitions of everything with these goodputs under fixed partitions, MRU, LRU.
    fn runs(fixed: f64, mru: f64, lru: f64) -> Vec<Runs> {
        let of = |rule: VictimPolicy| {
            if rule == FIXED {
                fixed
            } else if rule == MRU {
                mru
            } else {
                lru
            }
        };
        let one = |load| {
            let mut runs = Runs::new(load);
            for (rule, outcomes) in runs.rules.iter().zip(&mut runs.outcomes) {
                outcomes.extend([0.9, 1.0, 1.1].map(|noise| outcome(*rule, of(*rule) * noise)));
            }
            runs
        };
        LOADS.into_iter().map(one).collect()
    }

    fn failed(runs: &[Runs]) -> Vec<String> {
        all(runs).into_iter().filter(|(_, holds)| !holds).map(|(text, _)| text).collect()
    }

    #[test]
    fn all_checks_pass_when_sharing_wins() {
        assert_eq!(failed(&runs(100.0, 130.0, 120.0)), [""; 0]);
        assert_eq!(all(&runs(100.0, 130.0, 120.0)).len(), 2 * (2 + 4) + 2 + 1);
    }

    #[test]
    fn losses_of_sharing_are_reported_per_load() {
        let failed = failed(&runs(100.0, 90.0, 80.0));
        for load in ["alternating", "skewed"] {
            let said =
                |figure: &str| failed.iter().any(|text| text.starts_with(&format!("{load}: {figure} ")));
            assert!(said("goodput") && said("throughput") && said("P99 TTFT"), "{failed:?}");
        }
        assert_eq!(failed.len(), 6, "{failed:?}");
    }

    #[test]
    fn a_rule_that_is_worse_than_its_opposite_fails() {
        let failed = failed(&runs(100.0, 120.0, 130.0));
        assert!(failed.len() == 2 && failed.iter().all(|text| text.contains(" of LRU, ")), "{failed:?}");
    }

    #[test]
    fn unexhausted_load_is_inconclusive_and_changed_tokens_fail() {
        let mut idle = runs(100.0, 130.0, 120.0);
        idle[0].outcomes[0][1].preempted = 0;
        idle[1].outcomes[1][2].outputs = vec![vec![2]];
        let failed = failed(&idle);
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(
            failed[0].contains("preempted 0 times") && failed[1].contains("the same tokens"),
            "{failed:?}"
        );
    }
}

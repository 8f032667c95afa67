//! Compares `Unified` with every single policy by goodput: tokens per second of requests that met both objectives.
//!
//! Requirements for `Unified` (one row each, over at least twenty seeds). Against the best single policy, the interval
//! of the goodput ratio starts at 0.98 or above. No policy is at least as good in goodput and in the P99 of first
//! tokens and of tokens, and more than 2 % better in one of them. On mixes, the interval starts above 1.05. Where the
//! copy of a layer takes seventy times its compute, the layers of an active model stay resident.

mod interval;
pub mod scenarios;

use std::sync::Arc;

use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::runs::{self, Job};
use super::{ComparisonRow, ExperimentContext, ExperimentReport, Figure, Series};
use crate::serve::ServeStats;
use interval::{Interval, mean, paired};
use scenarios::{Scenario, Sources};

/// Name on the command line.
pub const NAME: &str = "unified";

/// Smallest number of seeds: with fewer, an interval proves nothing.
pub const MIN_SEEDS: u64 = 20;

/// Smallest start of the interval of the goodput ratio to the best single policy.
const MIN_SHARE_OF_BEST: f64 = 0.98;
/// The same on mixes.
const MIN_GAIN_ON_MIXES: f64 = 1.05;
/// Smallest lead, as a share, that counts as better.
const SLACK: f64 = 0.02;

/// Runs the experiment.
///
/// # Errors
/// Those of [`super::Experiment::run`].
pub fn run(lab: &ExperimentContext<'_>) -> Result<ExperimentReport, String> {
    let sources = Sources::read(lab)?;
    let scenarios = &scenarios::ALL;
    let mut jobs = Vec::new();
    for scenario in scenarios {
        for seed in lab.seed..lab.seed + lab.seeds {
            let load = Arc::new(scenario.load(&sources, lab.requests, seed));
            for policy in PolicyName::ALL {
                let name = format!("{} seed {seed} {}", scenario.name, policy.name());
                jobs.push(Job { name, case: scenario.case(policy, seed), load: load.clone() });
            }
        }
    }
    let served = runs::run_all(&jobs, lab.progress)?;
    let found: Vec<_> =
        served.chunks(PolicyName::ALL.len() * lab.seeds as usize).map(PolicyResults::of).collect();
    Ok(report(scenarios, &found))
}

/// Results of one scenario: the runs of each policy, by seed.
struct PolicyResults(Vec<(PolicyName, Vec<ServeStats>)>);

/// A metric: its name, its value in a run, and whether larger is better.
type Metric = (&'static str, fn(&ServeStats) -> f64, bool);

const METRICS: [Metric; 3] = [
    ("goodput", |served| served.goodput, true),
    ("P99 of the first token", |served| served.ttft_p99, false),
    ("P99 between tokens", |served| served.tbt_p99, false),
];

const GOODPUT: fn(&ServeStats) -> f64 = METRICS[0].1;

impl PolicyResults {
    /// Groups runs, which are in the order seed, policy.
    fn of(served: &[ServeStats]) -> PolicyResults {
        let of = |at: usize| served.iter().skip(at).step_by(PolicyName::ALL.len()).cloned().collect();
        PolicyResults(PolicyName::ALL.into_iter().enumerate().map(|(at, policy)| (policy, of(at))).collect())
    }

    fn runs(&self, policy: PolicyName) -> &[ServeStats] {
        let found = self.0.iter().find(|(other, _)| *other == policy);
        &found.expect("every policy has run").1
    }

    fn mean(&self, policy: PolicyName, of: fn(&ServeStats) -> f64) -> f64 {
        mean(&self.runs(policy).iter().map(of).collect::<Vec<_>>())
    }

    /// Returns the single policy with the highest mean goodput over all seeds.
    fn best(&self) -> PolicyName {
        let single = PolicyName::ALL.into_iter().filter(|policy| *policy != PolicyName::Unified);
        let goodput = |policy: &PolicyName| self.mean(*policy, GOODPUT);
        single.max_by(|a, b| goodput(a).total_cmp(&goodput(b))).expect("there are other policies")
    }

    /// Returns the interval of the ratio of `Unified`'s goodput to another policy's, paired by seed.
    fn ratio(&self, against: PolicyName) -> Interval {
        let pairs = self.runs(PolicyName::Unified).iter().zip(self.runs(against));
        paired(&pairs.map(|(ours, other)| ours.goodput / other.goodput.max(1e-9)).collect::<Vec<_>>())
    }

    /// Returns the lead of a policy over `Unified` in a metric, as a share; negative if it is worse.
    fn lead(&self, policy: PolicyName, (_, of, more_is_better): Metric) -> f64 {
        let (theirs, ours) = (self.mean(policy, of).max(1e-9), self.mean(PolicyName::Unified, of).max(1e-9));
        if more_is_better { theirs / ours - 1.0 } else { ours / theirs - 1.0 }
    }

    /// Returns the policies that are at least as good in all metrics and better by more than the slack in one.
    fn dominating(&self) -> Vec<String> {
        let dominates = |policy: &PolicyName| {
            let leads = METRICS.map(|metric| self.lead(*policy, metric));
            leads.iter().all(|lead| *lead >= 0.0) && leads.iter().any(|lead| *lead > SLACK)
        };
        let others = PolicyName::ALL.into_iter().filter(|policy| *policy != PolicyName::Unified);
        others.filter(dominates).map(|policy| self.describe(policy)).collect()
    }

    fn describe(&self, policy: PolicyName) -> String {
        let leads = METRICS.map(|metric| format!("{:+.1} %", 100.0 * self.lead(policy, metric)));
        format!("{} ({})", policy.name(), leads.join(", "))
    }

    /// Returns how often a policy remapped layers of an active model.
    fn remapped(&self, policy: PolicyName) -> u64 {
        let given = [Reason::RemapOwn, Reason::RemapStalls];
        let times = |served: &ServeStats| {
            given.iter().filter_map(|reason| served.reasons.get(reason.label())).sum::<u64>()
        };
        self.runs(policy).iter().map(times).sum()
    }
}

fn report(scenarios: &[Scenario], found: &[PolicyResults]) -> ExperimentReport {
    let rows = scenarios.iter().zip(found).flat_map(|(scenario, found)| rows(scenario, found)).collect();
    let line = |policy: PolicyName| Series {
        name: policy.name().into(),
        points: (1..).zip(found).map(|(at, found)| (f64::from(at), share_of_best(found, policy))).collect(),
    };
    let figure = Figure {
        title: "Goodput, as a share of the best policy's".into(),
        x: "scenario".into(),
        y: "share".into(),
        names: scenarios.iter().map(|scenario| scenario.name.into()).collect(),
        lines: PolicyName::ALL.into_iter().map(line).collect(),
    };
    ExperimentReport { details: details(scenarios, found), ..ExperimentReport::new(rows, figure) }
}

fn share_of_best(found: &PolicyResults, policy: PolicyName) -> f64 {
    let most = PolicyName::ALL.into_iter().map(|policy| found.mean(policy, GOODPUT)).fold(1e-9, f64::max);
    found.mean(policy, GOODPUT) / most
}

fn rows(scenario: &Scenario, found: &PolicyResults) -> Vec<ComparisonRow> {
    let (link, best) = (scenario.hardware().class.name(), found.best());
    let ratio = found.ratio(best);
    let row = |what: &str, required: String, found_text: String, holds: bool| {
        ComparisonRow::required(link, format!("{}: {what}", scenario.name), required, found_text, holds)
    };
    let against = format!("goodput against the best single policy, {}", best.name());
    let mut rows = vec![row(
        &against,
        format!("from {MIN_SHARE_OF_BEST}"),
        ratio.to_string(),
        ratio.from >= MIN_SHARE_OF_BEST,
    )];
    if scenario.is_mix() {
        let what = format!("gain on a mix over {}", best.name());
        rows.push(row(
            &what,
            format!("above {MIN_GAIN_ON_MIXES}"),
            ratio.to_string(),
            ratio.from > MIN_GAIN_ON_MIXES,
        ));
    }
    let dominating = found.dominating();
    let names = if dominating.is_empty() { "no policy".to_owned() } else { dominating.join("; ") };
    let required = "no policy by more than 2 %".to_owned();
    rows.push(row("is dominated by", required, names, dominating.is_empty()));
    if scenario.declines() {
        let times = found.remapped(PolicyName::Unified);
        rows.push(row(
            "layers of the active model whose memory holds KV",
            "0".into(),
            times.to_string(),
            times == 0,
        ));
    }
    rows
}

fn details(scenarios: &[Scenario], found: &[PolicyResults]) -> Vec<Vec<String>> {
    let heading = [
        "SCENARIO",
        "MIX",
        "POLICY",
        "GOODPUT",
        "UNIFIED / IT",
        "TOKENS/S",
        "P99 TTFT S",
        "P99 TBT MS",
        "PREEMPTED",
        "PAUSED",
        "REMAPPED",
        "STALL S",
        "GB IN",
        "GB OUT",
    ];
    let lines = scenarios.iter().zip(found).flat_map(|(scenario, found)| {
        PolicyName::ALL.into_iter().map(|policy| detail(scenario, found, policy))
    });
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(lines).collect()
}

fn detail(scenario: &Scenario, found: &PolicyResults, policy: PolicyName) -> Vec<String> {
    let mean = |of: fn(&ServeStats) -> f64| found.mean(policy, of);
    vec![
        scenario.name.to_owned(),
        if scenario.is_mix() { "mix" } else { "" }.to_owned(),
        policy.name().to_owned(),
        format!("{:.0}", mean(GOODPUT)),
        found.ratio(policy).to_string(),
        format!("{:.0}", mean(|served| served.throughput)),
        format!("{:.2}", mean(|served| served.ttft_p99) / 1e3),
        format!("{:.0}", mean(|served| served.tbt_p99)),
        format!("{:.1}", mean(|served| served.preemptions as f64)),
        format!("{:.1}", mean(|served| served.pauses as f64)),
        format!("{:.1}", mean(|served| served.remapped_layers as f64)),
        format!("{:.2}", mean(|served| served.stall_s + served.kv_stall_s)),
        format!("{:.0}", mean(|served| served.link_gb.0)),
        format!("{:.0}", mean(|served| served.link_gb.1)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two runs of each policy, equal except for those of policy `one`.
    fn found(one: PolicyName, goodput: [f64; 2], ttft_p99: f64) -> PolicyResults {
        let usual = ServeStats { goodput: 100.0, ttft_p99: 10.0, tbt_p99: 10.0, ..ServeStats::default() };
        let runs = |policy| match policy {
            _ if policy == one => {
                goodput.map(|goodput| ServeStats { goodput, ttft_p99, ..usual.clone() }).to_vec()
            }
            _ => vec![usual.clone(); 2],
        };
        PolicyResults(PolicyName::ALL.into_iter().map(|policy| (policy, runs(policy))).collect())
    }

    #[test]
    fn the_best_single_policy_is_the_one_with_most_goodput_over_all_seeds() {
        let found = found(PolicyName::Pie, [150.0, 70.0], 10.0);
        assert_eq!(found.best(), PolicyName::Pie);
        let ratio = found.ratio(PolicyName::Pie).mean;
        assert!((ratio - (1.0 / 1.5 + 1.0 / 0.7) / 2.0).abs() < 1e-9, "{ratio}: paired by seed");
    }

    #[test]
    fn policy_better_in_one_metric_and_worse_in_none_dominates() {
        let dominating = |goodput, ttft| found(PolicyName::Ellm, [goodput; 2], ttft).dominating().len();
        assert_eq!(dominating(103.0, 10.0), 1);
        assert_eq!(dominating(100.0, 9.7), 1);
        assert_eq!(dominating(101.9, 10.0), 0, "within the slack");
        assert_eq!(dominating(120.0, 10.1), 0, "worse in one");
    }

    #[test]
    fn a_mix_has_two_kinds_of_lengths_or_rates_that_change_by_four() {
        let mixes: Vec<_> = scenarios::ALL.iter().filter(|one| one.is_mix()).map(|one| one.name).collect();
        assert_eq!(mixes, ["turns", "lengths", "rates", "pcie-mix"]);
    }
}

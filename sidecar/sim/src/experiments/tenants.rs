//! Several tenants in time slices on one GPU, under rising load: Oneiros against its baselines (Oneiros Fig. 8).
//!
//! Arrivals follow Azure's trace of a coding service, with one segment per model. Lengths are ShareGPT's, with prompts
//! cut to about those of single turns, and Alpaca's. The paper's text has no absolute rates, so three rates from light
//! load to saturation are run, and changes are averaged over all runs. The same memory with a PCIe link, which the
//! paper does not have, runs at the middle rates and is reported separately.

use std::sync::Arc;

use sluice_policy::params::Params;
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::reclaim::PolicyName;

use super::runs::{self, Job};
use super::{
    ComparisonRow, DeviationReason, ExperimentContext, ExperimentReport, Figure, PaperValue, Series,
};
use crate::profiles::hardware::{self, Hardware, LinkClass};
use crate::profiles::model;
use crate::serve::{self, ServeConfig, ServeStats};
use crate::workload::arrivals::ArrivalProcess;
use crate::workload::{self, Arrival, LengthSource, Limits, TenantAssignment};

const MS: u64 = 1_000_000;
const ARRIVALS: &str = "azure_llm_2023_code.csv";

/// Lengths: file, largest prompt in tokens, and the factor on the number of requests, so that short ones fill the
/// memory too.
const LENGTHS: [(&str, u32, usize); 2] = [("sharegpt_lengths.csv", 200, 1), ("alpaca_lengths.csv", 512, 3)];

/// Compared policies, in KV block order.
const POLICIES: [PolicyName; 3] = [PolicyName::Recompute, PolicyName::Pie, PolicyName::Oneiros];

/// Control: `Recompute` on a machine with enough memory that KV is never short. Shows the possible gain, and how much
/// longer steps get with more concurrent requests.
const AMPLE: &str = "memory for all";
const AMPLE_TIMES: u64 = 8;

/// A set of models and its load.
struct Scenario {
    name: &'static str,
    models: &'static [&'static str],
    shares_permille: &'static [u32],
    /// Requests per second for each source of lengths.
    rates: [[f64; 3]; 2],
    /// Change of throughput, and of the P99 of the first token and of tokens, percent.
    paper: [f64; 3],
}

/// Ranges over the paper's experiments with models in time slices, percent (Oneiros Figs. 8 to 10). Fig. 8, reproduced
/// here, has the smallest of each; smaller gains are in Figs. 12 and 13, where models run concurrently.
const RANGES: [(f64, f64); 3] = [(39.9, 86.7), (-99.3, -74.8), (-82.5, -44.8)];

/// Oneiros against Pie, for one OPT-13B with Alpaca's lengths (Oneiros Fig. 14).
const AGAINST_PIE: [f64; 3] = [47.1, -93.6, -35.0];

/// Why a gain over Recompute may be smaller.
const SMALLER: [&str; 3] = [
    "the mean is over three loads, and at the lighter loads throughput is near the offered load; no policy \
     gains more than with memory for all",
    "the mean is over three loads: the lightest leaves little to gain, and beyond the capacity of the GPU \
     first tokens wait under any policy",
    "vLLM 0.7.3 stops decoding for whole prompts, also for recomputed ones, while here both policies split \
     prompts into chunks; here more requests run at once, from more tenants, which lengthens steps and the \
     wait for a time slice, with memory for all too, and tokens may wait for moving layers up to the \
     allowance",
];

/// Why a gain over Pie may be smaller.
const OTHER_SCENARIO: [&str; 3] = [
    "the figure of the paper is of one model; here models share the GPU in time slices, and the mean is \
     over three loads: at the lighter loads throughput is near the offered load, and no policy gains more \
     than with memory for all",
    "the figure of the paper is of one model; here models share the GPU in time slices, and the mean is \
     over three loads: the lightest leaves little to gain, and beyond the capacity of the GPU first tokens \
     wait under any policy",
    "the figure of the paper is of one model; here models share the GPU in time slices, and more requests \
     run at once, from more tenants, which lengthens steps and the wait for a time slice, with memory for \
     all too; and tokens may wait for moving layers up to the allowance",
];

/// One of the three loads saturates the machine. If the others gain nothing, the mean is this part of its gain.
const SATURATED_PART: f64 = 1.0 / 3.0;

/// Runs Oneiros' first set of models.
///
/// # Errors
/// Those of [`super::Experiment::run`].
pub fn c1(lab: &ExperimentContext<'_>) -> Result<ExperimentReport, String> {
    compare(
        &Scenario {
            name: "C1",
            models: &["opt-13b", "llama-2-13b", "llama-3-8b"],
            shares_permille: &[350, 350, 200],
            rates: [[0.5, 2.0, 8.0], [100.0, 200.0, 400.0]],
            paper: [39.9, -96.7, -54.4],
        },
        lab,
    )
}

/// Runs Oneiros' second set of models.
///
/// # Errors
/// Those of [`super::Experiment::run`].
pub fn c2(lab: &ExperimentContext<'_>) -> Result<ExperimentReport, String> {
    compare(
        &Scenario {
            name: "C2",
            models: &["opt-30b", "opt-6.7b"],
            shares_permille: &[650, 150],
            rates: [[0.5, 2.0, 8.0], [30.0, 60.0, 120.0]],
            paper: [45.3, -74.8, -44.8],
        },
        lab,
    )
}

/// One load under one policy.
struct LoadRun {
    class: LinkClass,
    lengths: &'static str,
    rate: f64,
    served: ServeStats,
}

impl LoadRun {
    fn is_same_load(&self, other: &LoadRun) -> bool {
        (self.class, self.lengths, self.rate) == (other.class, other.lengths, other.rate)
    }
}

/// Returns the paper's machine, and the same machine with a PCIe link.
fn machines() -> [Hardware; 2] {
    let of = |name| *hardware::find(name).expect("a machine of the list");
    let (own, pcie) = (of("gh200"), of("h200-pcie5"));
    [own, Hardware { class: pcie.class, link: pcie.link, ..own }]
}

fn compare(scenario: &Scenario, lab: &ExperimentContext<'_>) -> Result<ExperimentReport, String> {
    let (mut jobs, mut of) = (Vec::new(), Vec::new());
    for (lengths, rates) in LENGTHS.into_iter().zip(scenario.rates) {
        for (at, rate) in rates.into_iter().enumerate() {
            let load = Arc::new(load(scenario, lengths, rate, lab)?);
            let machines = machines().into_iter().take(if at == 1 { 2 } else { 1 });
            for (hardware, policy) in machines.flat_map(|machine| POLICIES.map(|policy| (machine, policy))) {
                let name = format!("{} {} {rate}/s {}", scenario.name, lengths.0, policy.name());
                let case = case(scenario, hardware, policy, lab.seed);
                jobs.push(Job { name, case, load: load.clone() });
                of.push((hardware.class, lengths.0, rate));
            }
            jobs.push(ample(scenario, lengths.0, rate, load, lab.seed));
            of.push((LinkClass::Coherent, lengths.0, rate));
        }
    }
    let served = runs::run_all(&jobs, lab.progress)?;
    let run = |(((class, lengths, rate), job), served): ((_, &Job), ServeStats)| {
        let policy = if job.name.ends_with(AMPLE) { AMPLE.to_owned() } else { served.policy.clone() };
        LoadRun { class, lengths, rate, served: ServeStats { policy, ..served } }
    };
    Ok(report(scenario, &of.into_iter().zip(&jobs).zip(served).map(run).collect::<Vec<_>>()))
}

/// Returns the job of the control.
fn ample(scenario: &Scenario, lengths: &str, rate: f64, load: Arc<Vec<Arrival>>, seed: u64) -> Job {
    let [own, _] = machines();
    let hardware = Hardware { memory_bytes: AMPLE_TIMES * own.memory_bytes, ..own };
    let name = format!("{} {lengths} {rate}/s {AMPLE}", scenario.name);
    Job { name, case: case(scenario, hardware, PolicyName::Recompute, seed), load }
}

fn load(
    scenario: &Scenario,
    (lengths, prompt_tokens, times): (&str, u32, usize),
    rate: f64,
    lab: &ExperimentContext<'_>,
) -> Result<Vec<Arrival>, String> {
    let arrivals = ArrivalProcess::Trace { table: (lab.read)(ARRIVALS)?, rate: Some(rate) };
    let source = [LengthSource::new(&(lab.read)(lengths)?)];
    let requests = lab.requests * times;
    let limits = Limits { model_tokens: model_tokens(scenario), prompt_tokens, requests };
    Ok(workload::load(&arrivals, &source, &limits, TenantAssignment::Segments, lab.seed))
}

fn models(scenario: &Scenario) -> Vec<model::ModelProfile> {
    scenario.models.iter().map(|name| *model::find(name).expect("a model of the list")).collect()
}

fn model_tokens(scenario: &Scenario) -> Vec<u32> {
    models(scenario).iter().map(|model| model.context_tokens).collect()
}

fn case(scenario: &Scenario, hardware: Hardware, policy: PolicyName, seed: u64) -> ServeConfig {
    let places = serve::tenant_models(&hardware, &models(scenario), scenario.shares_permille);
    let round_robin = serve::round_robin(Quantum::new(5 * MS, 50 * MS));
    ServeConfig { max_sequences: 256, seed, ..ServeConfig::new(hardware, places, round_robin, policy) }
}

/// A metric: its name, and its value in a run.
type Metric = (&'static str, fn(&ServeStats) -> f64);

/// Throughput, first token, tokens.
const METRICS: [Metric; 3] = [
    ("tokens per second", |served| served.throughput),
    ("P99 of the first token", |served| served.ttft_p99),
    ("P99 between tokens", |served| served.tbt_p99),
];

fn report(scenario: &Scenario, runs: &[LoadRun]) -> ExperimentReport {
    let (own, other) = (LinkClass::Coherent, LinkClass::Pcie5);
    let mut rows = Vec::new();
    for (at, (name, of)) in METRICS.into_iter().enumerate() {
        let against = |class, ours, base| mean_change(runs, class, (ours, base), of);
        let (oneiros, recompute, pie) = ("Oneiros", "Recompute", "Pie");
        let there_is = against(own, AMPLE, recompute);
        let reason = Some(smaller(SMALLER[at], RANGES[at], allowed(at, there_is)));
        let paper = PaperValue { unit: "%", paper: scenario.paper[at], range: RANGES[at], reason };
        let what = format!("{name}, Oneiros against Recompute");
        rows.push(ComparisonRow::compare_change(own.name(), &what, &paper, against(own, oneiros, recompute)));
        let paper = at_least(at, against(own, AMPLE, pie));
        let change = against(own, oneiros, pie);
        rows.push(ComparisonRow::compare_change(
            own.name(),
            format!("{name}, Oneiros against Pie"),
            &paper,
            change,
        ));
        let change = format!("{:+.1} %", against(own, pie, recompute));
        rows.push(ComparisonRow::unreported(own.name(), format!("{name}, Pie against Recompute"), change));
        let change = format!("{there_is:+.1} %");
        rows.push(ComparisonRow::unreported(
            own.name(),
            format!("{name}, {AMPLE} against Recompute"),
            change,
        ));
        let change = format!("{:+.1} %", against(other, oneiros, recompute));
        rows.push(ComparisonRow::unreported(other.name(), what, change));
    }
    rows.sort_by_key(|row| row.link != own.name());
    let figures = METRICS.into_iter().map(|metric| figure(scenario, runs, metric)).collect();
    ExperimentReport { rows, figures, details: details(runs) }
}

/// Returns the paper's value against Pie. The paper has one value and no range, so the range is that value or better.
fn at_least(metric: usize, there_is: f64) -> PaperValue {
    let paper = AGAINST_PIE[metric];
    let range = if paper < 0.0 { (-100.0, paper) } else { (paper, f64::INFINITY) };
    PaperValue {
        unit: "%",
        paper,
        range,
        reason: Some(smaller(OTHER_SCENARIO[metric], range, allowed(metric, there_is))),
    }
}

/// Returns the reason for a smaller gain in a mean over loads. It explains gains down to [`SATURATED_PART`] of the
/// smallest gain in the range. A smaller gain of the control lowers this bound, also if the control has a loss.
fn smaller(why: &'static str, (from, to): (f64, f64), there_is: f64) -> DeviationReason {
    let (from, to) = if to < 0.0 {
        (to, there_is.max(to * SATURATED_PART))
    } else {
        (from.min(there_is) * SATURATED_PART, from)
    };
    DeviationReason { why, from, to }
}

/// Returns the change of the control, percent. The time between tokens also includes the stall that Oneiros allows per
/// token.
fn allowed(metric: usize, change: f64) -> f64 {
    let stall = f64::from(Params::default().stall_allowance_permille) / 10.0;
    if metric == 2 { (100.0 + change) * (100.0 + stall) / 100.0 - 100.0 } else { change }
}

/// Returns the mean change over loads of one policy against another, percent.
fn mean_change(
    runs: &[LoadRun],
    class: LinkClass,
    (ours, base): (&str, &str),
    of: fn(&ServeStats) -> f64,
) -> f64 {
    let find = |like: &LoadRun| {
        let base = runs.iter().find(|run| run.is_same_load(like) && run.served.policy == base);
        base.map(|run| of(&run.served))
    };
    let ours = runs.iter().filter(|run| run.class == class && run.served.policy == ours);
    let changes: Vec<f64> =
        ours.filter_map(|run| Some(100.0 * (of(&run.served) / find(run)? - 1.0))).collect();
    changes.iter().sum::<f64>() / changes.len().max(1) as f64
}

fn figure(scenario: &Scenario, runs: &[LoadRun], (name, of): Metric) -> Figure {
    let own = |run: &&LoadRun| run.class == LinkClass::Coherent;
    // The rates of both sources of lengths are too far apart for one axis, so each is a share of its largest.
    let share = |run: &LoadRun| {
        let alike = runs.iter().filter(|other| other.lengths == run.lengths);
        run.rate / alike.map(|other| other.rate).fold(run.rate, f64::max)
    };
    let line = |lengths: &str, policy: PolicyName| {
        let runs = runs.iter().filter(own);
        let own = runs.filter(|run| run.lengths == lengths && run.served.policy == policy.name());
        let dataset = lengths.split('_').next().unwrap_or(lengths);
        Series {
            name: format!("{} {dataset}", policy.name()),
            points: own.map(|run| (share(run), of(&run.served))).collect(),
        }
    };
    let lines = LENGTHS.iter().flat_map(|(lengths, ..)| POLICIES.map(|policy| line(lengths, policy)));
    Figure {
        title: format!("Oneiros {}, GH200: {name} over load", scenario.name),
        x: "requests per second, of the largest rate with these lengths".into(),
        y: if name.starts_with("P99") { "milliseconds".into() } else { name.into() },
        names: Vec::new(),
        lines: lines.collect(),
    }
}

fn details(runs: &[LoadRun]) -> Vec<Vec<String>> {
    let heading = [
        "LINK",
        "LENGTHS",
        "RATE",
        "POLICY",
        "TOKENS/S",
        "GOODPUT",
        "P99 TTFT S",
        "P99 TBT MS",
        "PREEMPTED",
        "REMAPPED",
        "GB IN",
        "GB OUT",
    ];
    let line = |run: &LoadRun| {
        let served = &run.served;
        vec![
            run.class.name().to_owned(),
            run.lengths.to_owned(),
            run.rate.to_string(),
            served.policy.clone(),
            format!("{:.0}", served.throughput),
            format!("{:.0}", served.goodput),
            format!("{:.2}", served.ttft_p99 / 1e3),
            format!("{:.0}", served.tbt_p99),
            served.preemptions.to_string(),
            served.remapped_layers.to_string(),
            format!("{:.0}", served.link_gb.0),
            format!("{:.0}", served.link_gb.1),
        ]
    };
    let heading = heading.map(str::to_owned).to_vec();
    std::iter::once(heading).chain(runs.iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ExperimentCheck::{self, Differs, Reasoned, Same};
    use super::*;

    fn verdict(paper: &PaperValue, ours: f64) -> ExperimentCheck {
        ComparisonRow::compare_change("C2C", "what", paper, ours).verdict
    }

    #[test]
    fn a_mean_over_three_loads_explains_a_third_of_a_gain_and_no_less() {
        let over_pie =
            [(0, 60.0), (1, -99.0), (2, -50.0)].map(|(metric, there_is)| at_least(metric, there_is));
        assert_eq!([50.0, 20.0, 15.0].map(|ours| verdict(&over_pie[0], ours)), [Same, Reasoned, Differs]);
        assert_eq!([-95.0, -32.0, -31.0].map(|ours| verdict(&over_pie[1], ours)), [Same, Reasoned, Differs]);
        assert_eq!([-40.0, -12.0, 15.0].map(|ours| verdict(&over_pie[2], ours)), [Same, Reasoned, Differs]);
    }

    #[test]
    fn required_gain_is_bounded_by_gain_of_ample_memory() {
        let little = at_least(0, 9.0);
        assert_eq!([3.1, 2.9].map(|ours| verdict(&little, ours)), [Reasoned, Differs]);
        let longer = at_least(2, 40.0);
        assert_eq!([46.9, 47.1].map(|ours| verdict(&longer, ours)), [Reasoned, Differs], "and 5 % of 140");
    }
}

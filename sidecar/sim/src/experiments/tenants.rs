//! Several tenants that take turns on one GPU, under rising load: Oneiros against what it is compared with (Oneiros Fig. 8).
//!
//! Arrivals have the shape of Azure's trace of a coding service, a stretch of it for each model; lengths are ShareGPT's, whose
//! prompts are cut to near those of single turns, and Alpaca's. Absolute rates are not in the paper's text, so three are run
//! from light load to saturation, and changes are averaged over all runs.

use sluice_policy::neighbours::turn::Quantum;
use sluice_policy::neighbours::victim::Rule;
use sluice_policy::params::PolicyName;

use super::{Figure, Lab, Line, Report, Row};
use crate::profiles::cost::Launch;
use crate::profiles::{hardware, model};
use crate::serve::{self, Case, Served, Slo};
use crate::workload::arrivals::Arrivals;
use crate::workload::{self, Coming, Deal, Limits, Source};

const MS: u64 = 1_000_000;
const ARRIVALS: &str = "azure_llm_2023_code.csv";

/// Lengths: file, longest prompt.
const LENGTHS: [(&str, u32); 2] = [("sharegpt_lengths.csv", 200), ("alpaca_lengths.csv", 512)];

/// What is compared.
struct Scenario {
    name: &'static str,
    models: &'static [&'static str],
    shares_permille: &'static [u32],
    /// Requests per second of each kind of lengths.
    rates: [[f64; 3]; 2],
    /// Change of throughput, and of the 99th percentiles of the first token and of tokens, percent.
    paper: [f64; 3],
}

/// Ranges over all of the paper's experiments, percent (Oneiros' abstract and introduction).
const RANGES: [(f64, f64); 3] = [(6.6, 86.7), (-99.3, -20.7), (-82.5, -44.8)];

const REASONS: [&str; 3] = [
    "averaged over loads that begin where all requests fit, and there tokens per second are those that were asked for",
    "averaged over loads that begin where nobody waits, and there nothing is to be gained",
    "vLLM 0.7.3 stops decoding for whole prompts, also for those that it computes again; here both policies cut prompts into \
     chunks, so the 99th gap in a hundred is a turn of the neighbours, and longer steps of larger batches stretch it",
];

/// Oneiros' first set of models.
///
/// # Errors
/// Those of [`super::Experiment::run`].
pub fn c1(lab: &Lab<'_>) -> Result<Report, String> {
    compare(
        &Scenario {
            name: "C1",
            models: &["opt-13b", "llama-2-13b", "llama-3-8b"],
            shares_permille: &[350, 350, 200],
            rates: [[2.0, 4.0, 8.0], [100.0, 200.0, 400.0]],
            paper: [39.9, -96.7, -54.4],
        },
        lab,
    )
}

/// Its second.
///
/// # Errors
/// Those of [`super::Experiment::run`].
pub fn c2(lab: &Lab<'_>) -> Result<Report, String> {
    compare(
        &Scenario {
            name: "C2",
            models: &["opt-30b", "opt-6.7b"],
            shares_permille: &[650, 150],
            rates: [[2.0, 4.0, 8.0], [30.0, 60.0, 120.0]],
            paper: [45.3, -74.8, -44.8],
        },
        lab,
    )
}

/// One load under one policy.
struct Run {
    lengths: &'static str,
    rate: f64,
    served: Served,
}

/// Policies in the order of columns: those that exist of what the paper compares.
fn policies() -> Vec<PolicyName> {
    let wanted = ["Recompute", "Pie", "Oneiros"];
    wanted
        .iter()
        .filter_map(|name| PolicyName::ALL.into_iter().find(|policy| policy.name() == *name))
        .collect()
}

fn compare(scenario: &Scenario, lab: &Lab<'_>) -> Result<Report, String> {
    let (policies, table) = (policies(), (lab.read)(ARRIVALS)?);
    let (mut runs, total) = (Vec::new(), LENGTHS.len() * 3 * policies.len());
    for ((lengths, prompt_tokens), rates) in LENGTHS.into_iter().zip(scenario.rates) {
        let source = [Source::new(&(lab.read)(lengths)?)];
        for rate in rates {
            let arrivals = Arrivals::Trace { table: table.clone(), rate: Some(rate) };
            let limits =
                Limits { model_tokens: model_tokens(scenario), prompt_tokens, requests: lab.requests };
            let load = workload::load(&arrivals, &source, &limits, Deal::Stretches, lab.seed);
            for policy in &policies {
                (lab.progress)(
                    &format!("{} {lengths} {rate}/s {}", scenario.name, policy.name()),
                    runs.len(),
                    total,
                );
                let served = serve_under(scenario, *policy, &load, lab.seed)?;
                runs.push(Run { lengths, rate, served });
            }
        }
    }
    Ok(report(scenario, &runs))
}

fn models(scenario: &Scenario) -> Vec<model::Model> {
    scenario.models.iter().map(|name| *model::named(name).expect("a model of the list")).collect()
}

fn model_tokens(scenario: &Scenario) -> Vec<u32> {
    models(scenario).iter().map(|model| model.context_tokens).collect()
}

fn serve_under(
    scenario: &Scenario,
    policy: PolicyName,
    load: &[Coming],
    seed: u64,
) -> Result<Served, String> {
    let hardware = *hardware::named("gh200").expect("a machine of the list");
    let case = Case {
        hardware,
        places: serve::places(&hardware, &models(scenario), scenario.shares_permille),
        sharing: serve::round_robin(Quantum::new(5 * MS, 50 * MS)),
        policy,
        launch: Launch::Graph,
        chunk_bytes: 16 << 20,
        max_sequences: 256,
        prefix_caching: false,
        rule: Rule::default(),
        slo: Slo::default(),
        seed,
    };
    serve::serve(&case, load, &mut |_| {})
}

/// A figure of a run, by what it is called.
type Metric = (&'static str, fn(&Served) -> f64);

/// Throughput, first token, tokens.
const METRICS: [Metric; 3] = [
    ("throughput", |served| served.throughput),
    ("P99 time to the first token", |served| served.ttft_p99),
    ("P99 time between tokens", |served| served.tbt_p99),
];

fn report(scenario: &Scenario, runs: &[Run]) -> Report {
    let mut rows = Vec::new();
    for ((name, of), ((paper, range), reason)) in
        METRICS.iter().zip(scenario.paper.iter().zip(RANGES).zip(REASONS))
    {
        let what = format!("{name}, Oneiros against Recompute");
        rows.push(Row::change(what, *paper, range, mean_change(runs, *of), reason));
    }
    Report { rows, figure: figure(scenario, runs), details: details(runs) }
}

/// Percent, the mean over loads of Oneiros against Recompute.
fn mean_change(runs: &[Run], of: fn(&Served) -> f64) -> f64 {
    let find = |policy: &str, like: &Run| {
        let alike =
            |run: &&Run| run.lengths == like.lengths && run.rate == like.rate && run.served.policy == policy;
        runs.iter().find(alike).map(|run| of(&run.served))
    };
    let ours = runs.iter().filter(|run| run.served.policy == "Oneiros");
    let changes: Vec<f64> =
        ours.filter_map(|run| Some(100.0 * (of(&run.served) / find("Recompute", run)? - 1.0))).collect();
    changes.iter().sum::<f64>() / changes.len().max(1) as f64
}

fn figure(scenario: &Scenario, runs: &[Run]) -> Figure {
    let line = |lengths: &str, policy: PolicyName| {
        let own = runs.iter().filter(|run| run.lengths == lengths && run.served.policy == policy.name());
        let dataset = lengths.split('_').next().unwrap_or(lengths);
        Line {
            name: format!("{} {dataset}", policy.name()),
            points: own.map(|run| (run.rate, run.served.throughput)).collect(),
        }
    };
    let lines = LENGTHS
        .iter()
        .flat_map(|(lengths, _)| policies().into_iter().map(move |policy| line(lengths, policy)));
    Figure {
        title: format!("Oneiros {}: tokens per second over load, GH200", scenario.name),
        x: "requests per second".into(),
        y: "tokens per second".into(),
        lines: lines.collect(),
    }
}

fn details(runs: &[Run]) -> Vec<Vec<String>> {
    let heading = [
        "LENGTHS",
        "RATE",
        "POLICY",
        "TOKENS/S",
        "GOODPUT",
        "P99 TTFT S",
        "P99 TBT MS",
        "PREEMPTED",
        "REMAPPED",
        "LINK GB",
    ];
    let line = |run: &Run| {
        let served = &run.served;
        vec![
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
        ]
    };
    let heading = heading.map(str::to_owned).to_vec();
    std::iter::once(heading).chain(runs.iter().map(line)).collect()
}

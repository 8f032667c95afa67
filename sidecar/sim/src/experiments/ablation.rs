//! OrbitFlow's ablation: the share of tokens in time as its parts are added one by one.
//!
//! Llama-3-8B on an A5000 with 2 GiB of KV and batches of four, as in the paper. As there, requests are admitted first
//! come, first served whenever all fit, ignoring deadlines; by default our plans admit no request that would be late.
//! The paper's lengths are "derived from ShareGPT" with 32K tokens in a batch; ours are ShareGPT's, three times as
//! long, which gives the same. The paper also has requests longer than the 16K tokens that fit the device alone; they
//! are cut here, because no policy accepts more than its guarantee covers. The base of the objective is the paper's:
//! the time of a decode step of the longest request that fits.

use std::sync::Arc;

use sluice_policy::peers::victim::VictimRule;
use sluice_policy::reclaim::PolicyName;
use sluice_policy::tunables::Tuned;

use super::runs::{self, Job};
use super::{
    ComparisonRow, DeviationReason, ExperimentContext, ExperimentReport, Figure, PaperValue, Series,
};
use crate::gpu::GpuSharing;
use crate::profiles::cost::{BatchShape, Launch, step_ns};
use crate::profiles::hardware::{self, Hardware};
use crate::profiles::model::{self, ModelProfile};
use crate::serve::{self, RequestSlo, ServeConfig, ServeOptions, ServeStats};
use crate::workload::arrivals::ArrivalProcess;
use crate::workload::{self, Arrival, LengthSource, Limits, TenantAssignment};

const LENGTHS: &str = "sharegpt_lengths.csv";
const LENGTH_FACTOR: u32 = 3;
const KV_TOKENS: u32 = 16 << 10;
const BATCH: u32 = 4;

/// Requests per second. Calibrated so that equal layers for all requests have about as many tokens in time as in the
/// paper. The paper's rate is 0.97 per minute, for outputs of unpublished lengths.
const RATE: f64 = 1.35 / 60.0;

/// Percentage of `--requests` in each run, because requests are long.
const REQUESTS_PERCENT: usize = 5;

/// Number of runs with other arrivals and lengths, which are averaged.
const SEEDS: u64 = 4;

const SCALES: [f64; 2] = [1.0, 2.5];

/// One step of the ablation: the added part, whether all requests have the same layers offloaded, and whether requests
/// are paused and tokens paced.
struct AblationStep {
    name: &'static str,
    alike: bool,
    pauses: bool,
    paced: bool,
    /// Tokens in time at scale 1 in the paper, percent.
    paper: f64,
}

const ABLATION_STEPS: [AblationStep; 4] = [
    AblationStep {
        name: "the same layers of every request",
        alike: true,
        pauses: false,
        paced: false,
        paper: 45.1,
    },
    AblationStep {
        name: "+ a plan for each request",
        alike: false,
        pauses: false,
        paced: false,
        paper: 54.5,
    },
    AblationStep { name: "+ Pause-Resume", alike: false, pauses: true, paced: false, paper: 71.0 },
    AblationStep { name: "+ Token-Deposit", alike: false, pauses: true, paced: true, paper: 85.6 },
];

/// Percentage points that Token-Deposit adds at scale 2.5.
const DEPOSIT_AT_LARGE: f64 = 5.0;

/// Percentage points that Pause-Resume and Token-Deposit add together at scale 1.
const PAUSE_AND_DEPOSIT: f64 = 85.6 - 54.5;

const PAUSES: &str = "the paper counts a pause as one violation in each of its steps, and permits one late \
                      request in each step; here a pause makes one token late and no other request may be \
                      late, so pauses gain a part of the gain of the deposit in the paper";

const BUFFERS: &str = "the KV of all requests passes through two buffers as one stream, so the number of \
                       offloaded bytes matters, but hardly which request they belong to; in the paper each \
                       request fetches its own";

/// Smallest gain of a step that a reason can explain, percentage points.
const MIN_GAIN_POINTS: f64 = 0.5;

/// Tolerance around the paper's level, percentage points.
const LEVEL_TOLERANCE_POINTS: f64 = 10.0;

/// Runs the ablation.
///
/// # Errors
/// Those of [`super::Experiment::run`].
pub fn run(lab: &ExperimentContext<'_>) -> Result<ExperimentReport, String> {
    let source = LengthSource::new(&(lab.read)(LENGTHS)?).times(LENGTH_FACTOR);
    let mut jobs = Vec::new();
    for seed in 0..SEEDS {
        let load = Arc::new(load(&source, lab.requests, lab.seed + seed));
        for (scale, step) in
            SCALES.iter().flat_map(|scale| ABLATION_STEPS.iter().map(move |step| (*scale, step)))
        {
            let name = format!("{} scale {scale} seed {seed}", step.name);
            jobs.push(Job { name, case: case(step, scale, lab.seed + seed), load: load.clone() });
        }
    }
    let served = runs::run_all(&jobs, lab.progress)?;
    Ok(report(&served))
}

fn machine() -> (Hardware, ModelProfile) {
    let hardware = *hardware::find("a5000-pcie3").expect("a machine of the list");
    let model = *model::find("llama-3-8b").expect("a model of the list");
    (hardware, ModelProfile { context_tokens: KV_TOKENS, ..model })
}

/// Returns the ablation's load with lengths from `source`.
pub(super) fn draw_load(source: LengthSource, requests: usize, seed: u64) -> Vec<Arrival> {
    load(&source.times(LENGTH_FACTOR), requests, seed)
}

/// Returns the configuration of the last step under another policy, with default tunables.
pub(super) fn policy_case(policy: PolicyName, scale: f64, seed: u64) -> ServeConfig {
    ServeConfig {
        policy,
        tunables: Tuned::default(),
        ..case(&ABLATION_STEPS[ABLATION_STEPS.len() - 1], scale, seed)
    }
}

fn load(source: &LengthSource, requests: usize, seed: u64) -> Vec<Arrival> {
    let limits = Limits {
        model_tokens: vec![KV_TOKENS],
        prompt_tokens: KV_TOKENS,
        requests: (requests * REQUESTS_PERCENT / 100).max(1),
    };
    let arrivals = ArrivalProcess::Gamma { rate: RATE, cv: 1.0 };
    workload::load(&arrivals, std::slice::from_ref(source), &limits, TenantAssignment::Random, seed)
}

fn case(step: &AblationStep, scale: f64, seed: u64) -> ServeConfig {
    let (hardware, model) = machine();
    let longest = BatchShape::decode(1, u64::from(KV_TOKENS));
    let base_ns = step_ns(&hardware, &model, &longest, Launch::Eager) as f64;
    ServeConfig {
        hardware,
        tenants: serve::tenant_models(&hardware, &[model], &[]),
        sharing: GpuSharing::Isolated,
        policy: PolicyName::OrbitFlow,
        launch: Launch::Eager,
        chunk_bytes: 2 << 20,
        max_sequences: BATCH,
        prefix_caching: false,
        rule: VictimRule::default(),
        slo: RequestSlo { ttft_ns: u64::MAX, tbt_ns: (base_ns * scale) as u64 },
        options: ServeOptions {
            kv_bytes: Some(u64::from(KV_TOKENS) * model.kv_token_bytes()),
            host_kv_bytes: None,
            never_pauses: !step.pauses,
            unpaced: !step.paced,
        },
        tunables: step_tunables(step),
        seed,
    }
}

/// Sets OrbitFlow's planner as published: it admits first come, first served whenever all fit, and pauses a request
/// that makes others late.
fn step_tunables(step: &AblationStep) -> Tuned {
    let mut tuned = Tuned::default();
    let set = [("plan_first_come", 1), ("plan_alike", u64::from(step.alike))];
    set.into_iter().for_each(|(name, value)| tuned.set(name, value).expect("a tunable of the policy"));
    tuned
}

/// Returns the percentage of tokens in time by scale and step, as the mean over seeds.
fn attainments(served: &[ServeStats]) -> Vec<Vec<f64>> {
    let of = |scale: usize, step: usize| {
        let at = |seed: usize| &served[(seed * SCALES.len() + scale) * ABLATION_STEPS.len() + step];
        let met = |one: &ServeStats| if ABLATION_STEPS[step].paced { one.tbt_met_paced } else { one.tbt_met };
        100.0 * (0..SEEDS as usize).map(|seed| met(at(seed))).sum::<f64>() / SEEDS as f64
    };
    (0..SCALES.len()).map(|scale| (0..ABLATION_STEPS.len()).map(|step| of(scale, step)).collect()).collect()
}

fn report(served: &[ServeStats]) -> ExperimentReport {
    let attained = attainments(served);
    let rows = SCALES.iter().zip(&attained).flat_map(|(scale, ours)| rows(*scale, ours)).collect();
    let lines = SCALES.iter().zip(&attained).map(|(scale, ours)| Series {
        name: format!("scale {scale}"),
        points: (1..).zip(ours).map(|(step, met)| (f64::from(step), *met)).collect(),
    });
    let paper = Series {
        name: "paper, scale 1".into(),
        points: (1..).zip(&ABLATION_STEPS).map(|(number, step)| (f64::from(number), step.paper)).collect(),
    };
    let figure = Figure {
        title: "OrbitFlow's ladder".into(),
        x: "rung".into(),
        y: "percent of tokens in time".into(),
        names: ABLATION_STEPS.iter().map(|step| step.name.into()).collect(),
        lines: lines.chain([paper]).collect(),
    };
    ExperimentReport { details: details(served), ..ExperimentReport::new(rows, figure) }
}

/// Compares the levels, then the gain of each step.
fn rows(scale: f64, ours: &[f64]) -> Vec<ComparisonRow> {
    let link = machine().0.class.name();
    let mut rows: Vec<_> =
        ABLATION_STEPS.iter().zip(ours).map(|(step, met)| level(link, scale, step, *met)).collect();
    for (at, step) in ABLATION_STEPS.iter().enumerate().skip(1) {
        let what = format!("scale {scale}: {} adds", step.name.trim_start_matches("+ "));
        let gain = ours[at] - ours[at - 1];
        let paper = match scale {
            1.0 => Some(step.paper - ABLATION_STEPS[at - 1].paper),
            _ => step.paced.then_some(DEPOSIT_AT_LARGE),
        };
        rows.push(match paper {
            Some(paper) => ComparisonRow::compare_change(link, what, &paper_gain(step, paper), gain),
            None => ComparisonRow::unreported(link, what, format!("{gain:+.1} points")),
        });
    }
    if scale == 1.0 {
        let paper_change =
            PaperValue { reason: None, ..paper_value("points", PAUSE_AND_DEPOSIT, (0.5, 1.5)) };
        let what = "scale 1: Pause-Resume and Token-Deposit add together";
        rows.push(ComparisonRow::compare_change(link, what, &paper_change, ours[3] - ours[1]));
    }
    rows
}

fn level(link: &'static str, scale: f64, step: &AblationStep, met: f64) -> ComparisonRow {
    let what = format!("scale {scale}: {}", step.name);
    if scale != 1.0 || step.alike {
        // The load is calibrated to the first step at scale 1, so that agreement proves nothing.
        return ComparisonRow::unreported(link, what, format!("{met:+.1} %"));
    }
    ComparisonRow::compare_change(link, what, &paper_attainment(step), met)
}

/// Returns the paper's level with a tolerance of [`LEVEL_TOLERANCE_POINTS`]. Pauses explain a level up to that of the
/// next step.
fn paper_attainment(step: &AblationStep) -> PaperValue {
    let (paper, top) = (step.paper, ABLATION_STEPS[ABLATION_STEPS.len() - 1].paper);
    let range = (paper - LEVEL_TOLERANCE_POINTS, paper + LEVEL_TOLERANCE_POINTS);
    let pauses = DeviationReason { why: PAUSES, from: paper, to: top + LEVEL_TOLERANCE_POINTS };
    PaperValue { unit: "%", paper, range, reason: (step.pauses && !step.paced).then_some(pauses) }
}

/// Returns the paper's gain with a tolerance of one half. Reasons explain a larger gain of pauses and a smaller gain of
/// the other steps, but no loss.
fn paper_gain(step: &AblationStep, paper: f64) -> PaperValue {
    let unexplained = paper_value("points", paper, (0.5, 1.5));
    let reason = match (step.pauses, step.paced) {
        (true, false) => DeviationReason { why: PAUSES, from: paper, to: PAUSE_AND_DEPOSIT * 1.5 },
        (true, true) => DeviationReason { why: PAUSES, from: MIN_GAIN_POINTS, to: paper },
        _ => DeviationReason { why: BUFFERS, from: MIN_GAIN_POINTS, to: paper },
    };
    PaperValue { reason: Some(reason), ..unexplained }
}

fn paper_value(unit: &'static str, paper: f64, (from, to): (f64, f64)) -> PaperValue {
    PaperValue { unit, paper, range: (paper * from, paper * to), reason: None }
}

fn details(served: &[ServeStats]) -> Vec<Vec<String>> {
    let heading = [
        "SCALE",
        "RUNG",
        "MET %",
        "PACED %",
        "P99 TBT MS",
        "TOKENS/S",
        "PREEMPTED",
        "PAUSED",
        "STALL S",
        "GB IN",
        "PLANS",
        "GAP % P50/P90/MAX",
    ];
    let line = |(at, one): (usize, &ServeStats)| {
        let (scale, step) =
            (SCALES[at / ABLATION_STEPS.len() % SCALES.len()], &ABLATION_STEPS[at % ABLATION_STEPS.len()]);
        vec![
            scale.to_string(),
            step.name.to_owned(),
            format!("{:.1}", 100.0 * one.tbt_met),
            format!("{:.1}", 100.0 * one.tbt_met_paced),
            format!("{:.0}", one.tbt_p99),
            format!("{:.1}", one.throughput),
            one.preemptions.to_string(),
            one.pauses.to_string(),
            format!("{:.1}", one.stall_s + one.kv_stall_s),
            format!("{:.0}", one.link_gb.0),
            one.plans.to_string(),
            one.plan_gaps(),
        ]
    };
    let heading = heading.map(str::to_owned).to_vec();
    std::iter::once(heading).chain(served.iter().enumerate().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ExperimentCheck::{self, Differs, NotReported, Reasoned, Same};
    use super::*;

    fn verdicts(ours: [f64; 4]) -> Vec<ExperimentCheck> {
        rows(1.0, &ours).iter().map(|row| row.verdict).collect()
    }

    #[test]
    fn levels_and_gains_are_the_papers_explained_by_how_pauses_count_or_differ() {
        let paper = ABLATION_STEPS.map(|step| step.paper);
        assert_eq!(verdicts(paper), [NotReported, Same, Same, Same, Same, Same, Same, Same]);
        // Pauses gain what the deposit gains in the paper, and plans per request gain almost nothing.
        assert_eq!(verdicts([50.0, 51.0, 85.0, 86.0])[..4], [NotReported, Same, Reasoned, Same]);
        assert_eq!(verdicts([50.0, 51.0, 85.0, 86.0])[4..], [Reasoned, Reasoned, Reasoned, Same]);
        // A step that loses, levels that no reason explains, and pauses that gain more than the paper's last steps
        // together.
        assert_eq!(verdicts([54.0, 53.0, 71.0, 70.0])[4..], [Differs, Same, Differs, Same]);
        assert_eq!(verdicts([70.0, 54.5, 71.0, 97.0])[..4], [NotReported, Same, Same, Differs]);
        assert_eq!(verdicts([50.0, 50.4, 85.0, 85.4])[4..], [Differs, Reasoned, Differs, Same]);
        assert_eq!(verdicts([45.0, 46.0, 95.0, 95.0])[5], Differs);
    }
}

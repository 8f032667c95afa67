//! The commands `list`, `tunables` and `run`.

use anyhow::{Result, anyhow};
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;
use sluice_policy::tunables::{TUNABLES, Tunable};
use sluice_sim::experiments::unified;
use sluice_sim::experiments::unified::scenarios::{self, Scenario};
use sluice_sim::experiments::{
    self, ComparisonRow, Experiment, ExperimentCheck, ExperimentContext, ExperimentReport,
};
use sluice_sim::profiles::{hardware, model};
use sluice_sim::tunables;

use crate::args::RunArgs;
use crate::output::{check_writable, print, print_status, save};
use crate::progress::RunProgress;
use crate::{data, table};

/// Lists all names that other commands accept.
pub fn list() -> Result<bool> {
    let named: Vec<_> = experiments::ALL.iter().map(|e| [e.name.to_owned(), e.about.to_owned()]).collect();
    let scenarios: Vec<_> = scenarios::ALL.iter().map(scenario).collect();
    let machines: Vec<_> = hardware::ALL.iter().map(machine).collect();
    let models: Vec<_> = model::ALL.iter().map(shape).collect();
    let parts = [
        table::text(["EXPERIMENT", "SHOWS"], &named),
        table::text(["SCENARIO OF UNIFIED", "MIX", "PROFILE", "SHOWS"], &scenarios),
        table::text(["PROFILE", "LINK", "GB/S IN", "GB/S OUT", "GIB", "SOURCE"], &machines),
        table::text(["MODEL", "LAYERS", "WEIGHTS GB", "LAYER MB", "KV KB/TOKEN"], &models),
        format!("policies: {}", PolicyName::ALL.map(PolicyName::name).join(", ")),
    ];
    print(&parts.join("\n\n"))?;
    Ok(true)
}

fn scenario(scenario: &Scenario) -> [String; 4] {
    let mix = if scenario.is_mix() { "mix" } else { "" };
    [scenario.name, mix, scenario.profile, scenario.about].map(str::to_owned)
}

fn machine(machine: &hardware::Hardware) -> [String; 6] {
    let giga = |rate: u64| format!("{:.1}", rate as f64 / 1e9);
    [
        machine.name.to_owned(),
        machine.class.name().to_owned(),
        giga(machine.link.in_bytes_per_s),
        giga(machine.link.out_bytes_per_s),
        (machine.memory_bytes >> 30).to_string(),
        machine.source.to_owned(),
    ]
}

/// Prints every number of the policies that can be set.
pub fn tunables() -> Result<bool> {
    let usual = Params::default();
    let row = |tunable: &Tunable| {
        let ((least, most), default) = (tunable.range, tunable.of(&usual).to_string());
        [tunable.name, &default, &format!("{least} to {most}"), tunable.unit, tunable.meaning]
            .map(str::to_owned)
    };
    let rows: Vec<_> = TUNABLES.iter().map(row).collect();
    print(&table::text(["NAME", "DEFAULT", "RANGE", "UNIT", "MEANING"], &rows))?;
    Ok(true)
}

fn shape(model: &model::ModelProfile) -> [String; 5] {
    [
        model.name.to_owned(),
        model.layers.to_string(),
        format!("{:.1}", model.weight_bytes() as f64 / 1e9),
        format!("{:.0}", model.layer_bytes() as f64 / 1e6),
        format!("{:.0}", model.kv_token_bytes() as f64 / 1e3),
    ]
}

/// Runs one experiment. Returns `false` if a value differs from the paper's without a reason, or a requirement does not
/// hold.
pub fn run(args: &RunArgs) -> Result<bool> {
    let experiment = experiments::find(&args.name)
        .ok_or_else(|| anyhow!("no experiment has the name {:?}; {}", args.name, names()))?;
    check_writable([&args.json, &args.svg])?;
    let report = run_in_context(experiment, args)?;
    print(&text(experiment, &report))?;
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&json(experiment, &report, args))? + "\n";
        save(file, |file| Ok(std::fs::write(file, text)?))?;
    }
    if let Some(file) = &args.svg {
        save(file, |file| Ok(sluice_sim::figure::draw(&report.figures, file)?))?;
    }
    if experiment.name == unified::NAME && args.seeds < unified::MIN_SEEDS {
        print_status(&format!("{} seeds are too few: use at least {}", args.seeds, unified::MIN_SEEDS));
    }
    Ok(report.has_passed())
}

fn run_in_context(experiment: &Experiment, args: &RunArgs) -> Result<ExperimentReport> {
    let progress = RunProgress::new(experiment.name, 0);
    let report_progress =
        |name: &str, done: usize, of: usize| progress.update_of(name, done as u64, of as u64);
    let lab = ExperimentContext {
        read: &|file| data::read(file, &args.data, args.held_back).map_err(|error| format!("{error:#}")),
        progress: &report_progress,
        requests: args.requests,
        seed: args.seed,
        seeds: args.seeds,
    };
    let report = experiment.run(&lab).map_err(|problem| anyhow!(problem));
    progress.finish();
    report
}

fn names() -> String {
    let names: Vec<&str> = experiments::ALL.iter().map(|experiment| experiment.name).collect();
    format!("the experiments are {}", names.join(", "))
}

fn text(experiment: &Experiment, report: &ExperimentReport) -> String {
    let mut parts = vec![format!("{}: {}", experiment.name, experiment.about), figures(report)];
    let reasons = report.rows.iter().filter_map(|row| Some((row, row.reason.as_ref()?)));
    parts.extend(reasons.map(|(row, reason)| format!("{} {}: {reason}", row.link, row.what)));
    let details = report.details.split_first();
    parts.extend(details.map(|(heading, lines)| table::text_of_lines(heading, lines)));
    parts.push(format!("{}\ntunables {}", summary(report), tunables::summary()));
    parts.join("\n\n")
}

fn figures(report: &ExperimentReport) -> String {
    let cells = |row: &ComparisonRow| {
        let verdict = row.verdict.word().to_owned();
        [row.link.to_owned(), row.what.clone(), row.paper.clone(), row.ours.clone(), verdict]
    };
    let rows: Vec<_> = report.rows.iter().map(cells).collect();
    if report.rows.iter().any(|row| !row.link.is_empty()) {
        return table::text(["LINK", "", "PAPER", "OURS", "VERDICT"], &rows);
    }
    let rows: Vec<_> = rows.into_iter().map(|[_, rest @ ..]| rest).collect();
    table::text(["", "PAPER", "OURS", "VERDICT"], &rows)
}

fn summary(report: &ExperimentReport) -> String {
    let count = |verdict| report.rows.iter().filter(|row| row.verdict == verdict).count();
    let verdicts = [
        ExperimentCheck::Same,
        ExperimentCheck::Reasoned,
        ExperimentCheck::Differs,
        ExperimentCheck::NotReported,
        ExperimentCheck::Holds,
        ExperimentCheck::Fails,
    ];
    let counted: Vec<_> = verdicts
        .into_iter()
        .filter(|verdict| count(*verdict) > 0)
        .map(|verdict| format!("{} {}", count(verdict), verdict.word()))
        .collect();
    format!("of {} figures: {}", report.rows.len(), counted.join(", "))
}

fn json(experiment: &Experiment, report: &ExperimentReport, args: &RunArgs) -> serde_json::Value {
    serde_json::json!({
        "experiment": experiment.name,
        "about": experiment.about,
        "commit": env!("SLUICE_COMMIT"),
        "requests": args.requests,
        "seed": args.seed,
        "seeds": args.seeds,
        "held_back": args.held_back,
        "tunables": format!("{:016x}", tunables::digest()),
        "well": report.has_passed(),
        "rows": report.rows,
        "figures": report.figures,
        "details": report.details,
    })
}

//! `cargo run -p sluice-benches -- policies`: the policies under the same load, on a fast link and on a slow one.

mod runs;
mod table;

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use self::runs::{POLICIES, Runs};
use super::machine;
use super::report::{self, Verdict};
use super::statistics::middle as median;
use crate::child_process::Stop;
use crate::policy_comparison::{self, Calibration, LOAD, PolicyRunFigures};
use crate::source_tree::SourceTree;
use crate::tenant::BenchEnv;

/// Fewest repetitions that have a median and a range.
const FEWEST: u32 = 3;
/// A link on which remapping must win, and one on which it must decline.
const RATIOS: [f64; 2] = [7.5, 70.0];

/// Options of `cargo run -p sluice-benches -- policies`.
#[derive(Clone, Debug, clap::Args)]
pub struct PolicyArgs {
    /// Runs of every policy on every link, interleaved.
    #[arg(long, value_name = "N", default_value_t = FEWEST, value_parser = clap::value_parser!(u32).range(i64::from(FEWEST)..))]
    repetitions: u32,
    /// A model folder in Hugging Face layout instead of a generated one.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Also write every run to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the comparison; `false` if remapping lost on the fast link, moved layers on the slow one, or changed a token.
pub fn run(tree: &SourceTree, args: &PolicyArgs) -> Result<bool> {
    let stop = Stop::on_signals()?;
    let world = BenchEnv::prepare(tree, &stop, None, args.model.as_deref(), policy_comparison::MODEL)?;
    eprintln!("measuring the model with ample memory");
    let calibration = policy_comparison::calibrate(&world, LOAD)?;
    let machine = machine::describe();
    let links = RATIOS.map(|ratio| measure(&world, &calibration, ratio, args.repetitions));
    let links = links.into_iter().collect::<Result<Vec<_>>>()?;
    let mut report = machine::report(tree, machine);
    println!("{}{}", machine::heading(&report), setting(&calibration));
    links.iter().for_each(table::print);
    let verdicts = verdicts(&links);
    let passed = report::print(&verdicts);
    add_runs(&mut report, &calibration, &links, &verdicts);
    report::write(args.json.as_deref(), &report)?;
    Ok(passed)
}

fn measure(world: &BenchEnv, calibration: &Calibration, ratio: f64, repetitions: u32) -> Result<Runs> {
    let device = calibration.short_device(LOAD.context(), calibration.link_for(ratio));
    let mut outcomes: Vec<Vec<PolicyRunFigures>> = POLICIES.iter().map(|_| Vec::new()).collect();
    for repetition in 1..=repetitions {
        for (policy, outcomes) in POLICIES.iter().zip(&mut outcomes) {
            eprint!("r {ratio}, {repetition} of {repetitions}: {policy} ");
            let outcome = policy_comparison::run(world, policy, device, LOAD, |_| ())?;
            eprintln!("{:.0} tokens/s, {} layers remapped", outcome.throughput, outcome.remapped);
            outcomes.push(outcome);
        }
    }
    Ok(Runs { ratio, device, outcomes })
}

/// First that the runs were what they claim, then what they show.
fn verdicts(links: &[Runs]) -> Vec<Verdict> {
    let mut verdicts: Vec<_> = links.iter().flat_map(premises).collect();
    if let [fast, slow] = links {
        verdicts.extend(wins(fast));
        let remappings = slow.of("Oneiros").map(|outcome| outcome.remappings).sum::<u64>();
        let declined = slow.median("Oneiros", |outcome| outcome.declined as f64);
        let text = format!(
            "r = {}: Oneiros moved {remappings} times, and declined {declined} times a run",
            slow.ratio
        );
        verdicts.push((text, remappings == 0 && declined > 0.0));
    }
    let identical = links.iter().all(Runs::tokens_identical) && same_across(links);
    verdicts.push(("every policy gave the same tokens on every link".into(), identical));
    verdicts
}

fn premises(runs: &Runs) -> [Verdict; 2] {
    let preempted = runs.of(POLICIES[0]).map(|outcome| outcome.preempted).min().unwrap_or(0);
    let measured = runs.median(POLICIES[0], |outcome| outcome.ratio.unwrap_or(f64::NAN));
    let (r, near) = (runs.ratio, measured / runs.ratio);
    [
        (format!("r = {r}: KV was exhausted: Recompute preempted {preempted} times or more"), preempted > 0),
        (
            format!("r = {r}: measured under Recompute {measured:.1}, within a factor of 2"),
            near > 0.5 && near < 2.0,
        ),
    ]
}

fn wins(fast: &Runs) -> [Verdict; 4] {
    let times = |figure: fn(&PolicyRunFigures) -> f64| median(&fast.ratios("Oneiros", figure));
    let throughput = times(|outcome| outcome.throughput);
    let ttft = times(|outcome| outcome.ttft_p99);
    let tbt = times(|outcome| outcome.delivered_tbt_p99);
    let remappings = fast.of("Oneiros").map(|outcome| outcome.remappings).min().unwrap_or(0);
    let r = fast.ratio;
    [
        (format!("r = {r}: Oneiros gave layers to KV {remappings} times or more"), remappings > 0),
        (
            format!("r = {r}: throughput {throughput:.2} times that of Recompute (median of pairs), above 1"),
            throughput > 1.0,
        ),
        (format!("r = {r}: P99 TTFT {ttft:.2} times that of Recompute, below 1"), ttft < 1.0),
        (format!("r = {r}: P99 TBT as delivered {tbt:.2} times that of Recompute, at most 1.1"), tbt <= 1.1),
    ]
}

fn same_across(links: &[Runs]) -> bool {
    let mut firsts =
        links.iter().filter_map(|link| link.outcomes.first()?.first()).map(|outcome| &outcome.outputs);
    let first = firsts.next();
    firsts.all(|outputs| Some(outputs) == first)
}

fn setting(calibration: &Calibration) -> String {
    format!(
        "{} requests, {} at a time, {} tokens in and {} out; a layer of {} KiB computes in {:.0} us",
        LOAD.requests,
        LOAD.concurrency,
        LOAD.prompt,
        LOAD.output,
        calibration.layer_bytes >> 10,
        calibration.compute_ns as f64 / 1e3
    )
}

fn add_runs(report: &mut Value, calibration: &Calibration, links: &[Runs], verdicts: &[Verdict]) {
    let link = |runs: &Runs| {
        let policies = POLICIES.iter().zip(&runs.outcomes).map(|(policy, outcomes)| {
            json!({"policy": policy, "runs": outcomes.iter().map(PolicyRunFigures::to_json).collect::<Vec<_>>()})
        });
        json!({
            "r_wished": runs.ratio,
            "memory_bytes": runs.device.memory_bytes,
            "link_bytes_per_s": runs.device.link_bytes_per_s,
            "policies": policies.collect::<Vec<_>>(),
        })
    };
    report["setting"] = setting(calibration).into();
    report["links"] = links.iter().map(link).collect();
    report["verdicts"] = report::to_json(verdicts);
}

//! `cargo run -p sluice-benches -- sharing`: three tenants of one GPU under each sharing rule, and the cost of waking from
//! hibernation.

mod runs;
mod table;
mod verdict;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use self::runs::Runs;
use super::machine;
use super::report::{self, Verdict};
use super::wake::Wakes;
use crate::child_process::Stop;
use crate::sharing_bench::{self, FIXED, LRU, MRU, Setting, Shape, SharingRunFigures, Size, VictimPolicy};
use crate::source_tree::SourceTree;
use crate::tenant::BenchEnv;

/// Fewest repetitions that have a median and a range.
const FEWEST: u32 = 3;
/// Times that a tenant sleeps, for each link.
const NAPS: u32 = 7;
/// Of a GH200, about.
const RATIO: f64 = 7.5;
/// The load of a run.
const SIZE: Size = Size::FULL;
/// Loads, and the rules compared under each; the first is the baseline. The victim rule matters where the next
/// tenant to run is known.
const LOADS: [(Shape, &[VictimPolicy]); 2] =
    [(Shape::Alternating, &[FIXED, MRU, LRU]), (Shape::Skewed, &[FIXED, MRU])];

/// Options of `cargo run -p sluice-benches -- sharing`.
#[derive(Clone, Debug, clap::Args)]
pub struct SharingArgs {
    /// Runs under every rule and load, interleaved.
    #[arg(long, value_name = "N", default_value_t = FEWEST, value_parser = clap::value_parser!(u32).range(i64::from(FEWEST)..))]
    repetitions: u32,
    /// A model folder in Hugging Face layout for all tenants instead of a generated one.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Take the binaries in this folder instead of building them.
    #[arg(long, value_name = "DIR")]
    bins: Option<PathBuf>,
    /// Also write every run to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the comparison; `false` if trading lost, or changed a token.
pub fn run(tree: &SourceTree, args: &SharingArgs) -> Result<bool> {
    let stop = Stop::on_signals()?;
    let (bins, model) = (args.bins.as_deref(), args.model.as_deref());
    let world = BenchEnv::prepare(tree, &stop, bins, model, sharing_bench::MODEL)?;
    eprintln!("measuring the model with ample memory");
    let setting = Setting::measure(&world, SIZE, RATIO)?;
    let machine = machine::describe();
    let runs = measure(&world, &setting, args.repetitions)?;
    let wakes = Wakes::measure(&world, NAPS)?;
    let mut report = machine::report(tree, machine);
    println!("{}{}", machine::heading(&report), text(&setting).replace("; ", "\n"));
    println!(
        "Recompute: fixed partitions. Oneiros: peers lend; MRU and LRU: the peer that is asked first, the \
         most or the least recently used"
    );
    runs.iter().for_each(table::print);
    println!("\nwaking from hibernation");
    wakes.print();
    println!();
    let mut verdicts = verdict::all(&runs);
    verdicts.extend(wakes.verdicts());
    let passed = report::print(&verdicts);
    add_runs(&mut report, &setting, &runs, &verdicts);
    report["waking"] = wakes.to_json();
    report::write(args.json.as_deref(), &report)?;
    Ok(passed)
}

/// Runs all loads and rules once, then all of them again, so that changes of the machine affect all alike.
fn measure(world: &BenchEnv, setting: &Setting, repetitions: u32) -> Result<Vec<Runs>> {
    let mut all: Vec<Runs> = LOADS.into_iter().map(Runs::new).collect();
    let count = repetitions as usize * all.iter().map(|runs| runs.rules.len()).sum::<usize>();
    let mut number = 0;
    for _ in 0..repetitions {
        for runs in &mut all {
            for (rule, outcomes) in runs.rules.iter().zip(&mut runs.outcomes) {
                number += 1;
                eprint!("run {number} of {count}: {} load, {}: ", runs.shape.name(), rule.name);
                let begun = Instant::now();
                let outcome = sharing_bench::run(world, setting, *rule, (runs.shape, SIZE), |_| ())?;
                let (all, good, seconds) = (outcome.throughput, outcome.goodput, begun.elapsed().as_secs());
                eprintln!("{all:.0} tokens/s, {good:.0} of them in time ({seconds} s)");
                outcomes.push(outcome);
            }
        }
    }
    Ok(all)
}

fn text(setting: &Setting) -> String {
    let Setting { device, burst, calibration, .. } = setting;
    format!(
        "{} requests a run in bursts of {}, {} tokens in and {} out; GPU of {} MiB, a third for each tenant; a layer of {} \
         KiB computes in {:.0} us; objectives: first token within {} ms, each later one within {} ms (pace {} ms)",
        SIZE.requests(),
        burst.requests,
        burst.prompt,
        burst.output,
        device.memory_bytes >> 20,
        calibration.layer_bytes >> 10,
        calibration.compute_ns as f64 / 1e3,
        setting.ttft_ms,
        setting.tbt_ms,
        setting.pace_ms
    )
}

fn add_runs(report: &mut Value, setting: &Setting, runs: &[Runs], verdicts: &[Verdict]) {
    let load = |runs: &Runs| {
        let rules = runs.rules.iter().zip(&runs.outcomes).map(|(rule, outcomes)| {
            json!({"rule": rule.name, "runs": outcomes.iter().map(SharingRunFigures::to_json).collect::<Vec<_>>()})
        });
        json!({"load": runs.shape.name(), "rules": rules.collect::<Vec<_>>()})
    };
    report["setting"] = text(setting).into();
    report["memory_bytes"] = setting.device.memory_bytes.into();
    report["link_bytes_per_s"] = setting.device.link_bytes_per_s.into();
    report["loads"] = runs.iter().map(load).collect();
    report["verdicts"] = report::to_json(verdicts);
}

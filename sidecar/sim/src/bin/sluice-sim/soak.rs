//! The command `soak`.

use std::time::Instant;

use anyhow::{Result, anyhow};
use sluice_sim::soak::{self, PlantedBug, SoakStats};

use crate::args::SoakArgs;
use crate::output::print;
use crate::progress::RunProgress;

/// Runs seeds until one fails. Returns `false` if one does.
pub fn soak(args: &SoakArgs) -> Result<bool> {
    let plant = args.plant.as_deref().map(parse_planted_bug).transpose()?;
    let (progress, begin) = (RunProgress::new("soak", args.seeds), Instant::now());
    let mut tally = SoakStats::default();
    let end = args
        .from
        .checked_add(args.seeds)
        .ok_or_else(|| anyhow!("--from and --seeds exceed the last seed"))?;
    for seed in args.from..end {
        let run = if args.decisions { soak::run_recorded } else { soak::run };
        match run(seed, plant) {
            Ok(one) => tally = tally.plus(one),
            Err(broken) => {
                progress.finish();
                print(&format!("{broken}\nagain: {}", repro_command(seed, plant)))?;
                return Ok(false);
            }
        }
        progress.update(seed - args.from + 1);
    }
    progress.finish();
    print(&text(&tally, begin.elapsed().as_secs_f64()))?;
    if args.decisions {
        print(&format!("decisions {:016x}", tally.decisions))?;
    }
    Ok(true)
}

fn parse_planted_bug(name: &str) -> Result<PlantedBug> {
    let names = || PlantedBug::ALL.map(PlantedBug::name).join(", ");
    let found = PlantedBug::ALL.into_iter().find(|plant| plant.name() == name);
    found.ok_or_else(|| anyhow!("no bug has the name {name:?}; the names are {}", names()))
}

fn repro_command(seed: u64, plant: Option<PlantedBug>) -> String {
    let plant = plant.map_or(String::new(), |plant| format!(" --plant {}", plant.name()));
    format!("sluice-sim soak --seeds 1 --from {seed}{plant}")
}

fn text(tally: &SoakStats, wall_s: f64) -> String {
    format!(
        "{} seeds hold, {:.1} a second\n{} requests answered, {} cut short, {} failed; {} troubles, {} loans, {} layers remapped, \
         {} inflations, {} preemptions, {} shares fell;\nKV: {} pauses, {} plans, {} joins, {} layers fetched, {} written back; \
         {} events replayed",
        tally.seeds,
        tally.seeds as f64 / wall_s,
        tally.answered,
        tally.cut_short,
        tally.failed,
        tally.faults,
        tally.loans,
        tally.remapped_layers,
        tally.inflations,
        tally.preemptions,
        tally.share_reductions,
        tally.pauses,
        tally.plans,
        tally.joins,
        tally.fetches,
        tally.write_backs,
        tally.replayed
    )
}

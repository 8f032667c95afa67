//! Measurement 6: recomputation against Oneiros, for a tenant whose KV is exhausted.

use std::time::Duration;

use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::Figure;
use sluice_wire::State;

use super::pairs::{Pairs, Run};
use crate::scale::Scale;
use crate::served::{Calibration, Load, Policy};

/// Measurement 6.
pub const CHECK: Check = Check {
    id: 6,
    name: "policies",
    text: "Recompute and Oneiros under a load that exhausts KV: a sidecar with its engine, by turns, one tenant alone",
    mib: 12_288,
    quick_mib: 4096,
    limit: Duration::from_secs(180),
    ask,
};

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let scale = Scale::of(bench);
    let load = load(scale);
    let calibration = Calibration::measure(bench, load)?;
    let fitting = scale.pick(2, 3, 3);
    let memory_bytes = calibration.memory_for(fitting);
    findings.notes.push(format!(
        "{}, {load}; KV holds {fitting} requests of {} KiB",
        calibration.model.name,
        calibration.model.kv_bytes(&load) >> 10
    ));
    findings.figures.extend(super::pairs::ample(&calibration));
    let mut pairs = Pairs::default();
    let (mut remapped, mut declined, mut r) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=scale.pick(1, 2, 3) {
        for policy in Policy::BOTH {
            bench.progress(&format!("{}, round {round}", policy.name()));
            let tenant = calibration.tenant(&format!("{}-{round}", policy.name()), policy, memory_bytes)?;
            let figures = calibration.send(&tenant, round)?;
            let state = tenant.state()?;
            if policy == Policy::Oneiros {
                remapped.push(moves(&state, "remap_own"));
                declined.push(moves(&state, "declined_stall"));
                r.extend(state.figures.r_permille.map(|permille| permille as f64 / 1000.0));
            }
            pairs.push(policy, Run { figures, preemptions: state.figures.preemptions_total });
        }
    }
    findings.figures.extend(pairs.figures());
    findings.figures.push(Figure::of("Oneiros: remaps of own layers", "", &remapped));
    findings.figures.push(Figure::of(
        "Oneiros: remaps declined because copies would not hide",
        "",
        &declined,
    ));
    if !r.is_empty() {
        findings.figures.push(Figure::of("Oneiros: r as measured", "", &r));
    }
    pairs.premise(&calibration.ample).map(|()| Answer::Yes)
}

fn load(scale: Scale) -> Load {
    scale.pick(
        // The only chunk of KV holds eight blocks: four prompts, whose answers need a third block each.
        Load { requests: 5, concurrency: 5, prompt: 30, output: 8 },
        Load { requests: 24, concurrency: 12, prompt: 256, output: 64 },
        Load { requests: 48, concurrency: 16, prompt: 256, output: 128 },
    )
}

/// How often memory moved, or was refused, for this reason.
pub(super) fn moves(state: &State, reason: &str) -> f64 {
    let found = state.figures.moves_total.iter().find(|count| count.reason == reason);
    found.map_or(0.0, |count| count.count as f64)
}

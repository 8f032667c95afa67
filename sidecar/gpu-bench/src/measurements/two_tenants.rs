//! Measurement 7: two tenants of one device in processes of their own, whose bursts alternate: fixed partitions against
//! memory that moves between them.

use std::time::Duration;

use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::Figure;
use sluice_wire::State;

use super::pairs::{Pairs, Run};
use super::policies::moves;
use crate::scale::Scale;
use crate::served::{Calibration, Load, LoadFigures, Policy, ServedError, SharedGpu};

/// Measurement 7.
pub const CHECK: Check = Check {
    id: 7,
    name: "two-tenants",
    text: "Two tenants of one device, each with a sidecar and an engine, whose bursts alternate: fixed partitions with \
           Recompute, and loans with Oneiros, by turns",
    mib: 16_384,
    quick_mib: 6144,
    limit: Duration::from_secs(180),
    ask,
};

/// Requests whose KV fits into a tenant's share.
const FITTING: u32 = 2;

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let scale = Scale::of(bench);
    let (burst, bursts) = load(scale);
    let calibration = Calibration::measure(bench, burst)?;
    findings.notes.push(format!(
        "{} for both; bursts to each: {bursts}, one tenant after the other, of {burst}; the KV of a share holds {FITTING} \
         requests of {} KiB",
        calibration.model.name,
        calibration.model.kv_bytes(&burst) >> 10
    ));
    findings.figures.extend(super::pairs::ample(&calibration));
    let (mut pairs, mut loans) = (Pairs::default(), Loans::default());
    for round in 1..=scale.pick(1, 2, 3) {
        for policy in Policy::BOTH {
            bench.progress(&format!("{}, round {round}", policy.name()));
            let name = format!("{}-{round}", policy.name());
            let gpu = SharedGpu::start(&calibration, &name, policy, FITTING)?;
            let figures = send(&calibration, &gpu, bursts)?;
            let states = gpu.tenants.iter().map(|tenant| tenant.state()).collect::<Result<Vec<_>, _>>()?;
            let preemptions = states.iter().map(|state| state.figures.preemptions_total).sum();
            pairs.push(policy, Run { figures, preemptions });
            if policy == Policy::Oneiros {
                loans.add(&states);
            }
        }
    }
    findings.figures.extend(pairs.figures());
    findings.figures.extend(loans.figures());
    pairs.premise(&calibration.ample)?;
    match loans.counts.iter().all(|count| *count > 0.0) {
        true => Ok(Answer::Yes),
        false => Err(Error::Otherwise("lent no memory to a tenant under Oneiros".into())),
    }
}

/// A burst, and the bursts that each tenant gets.
fn load(scale: Scale) -> (Load, u32) {
    scale.pick(
        (Load { requests: 5, concurrency: 5, prompt: 30, output: 8 }, 1),
        (Load { requests: 8, concurrency: 8, prompt: 256, output: 64 }, 2),
        (Load { requests: 12, concurrency: 12, prompt: 256, output: 128 }, 3),
    )
}

/// Sends bursts to the tenants by turns, each when the one before has been answered.
fn send(calibration: &Calibration, gpu: &SharedGpu, bursts: u32) -> Result<LoadFigures, ServedError> {
    let tenants = (0..bursts).flat_map(|_| &gpu.tenants);
    let bursts = (1..).zip(tenants).map(|(seed, tenant)| calibration.send(tenant, seed));
    Ok(LoadFigures::joined(&bursts.collect::<Result<Vec<_>, _>>()?))
}

/// What the tenants lent each other, run by run.
#[derive(Debug, Default)]
struct Loans {
    counts: Vec<f64>,
    grant_ms: Vec<f64>,
    revoke_ms: Vec<f64>,
}

impl Loans {
    fn add(&mut self, states: &[State]) {
        self.counts.push(states.iter().map(|state| moves(state, "lend")).sum());
        let peers = || states.iter().filter_map(|state| state.peers.as_ref());
        let ms = |times: &sluice_wire::state::Percentiles| {
            (times.samples > 0).then_some(times.p50_ns as f64 / 1e6)
        };
        self.grant_ms.extend(peers().filter_map(|peers| ms(&peers.grant)));
        self.revoke_ms.extend(peers().filter_map(|peers| ms(&peers.revoke)));
    }

    /// Delays have no figure where none occurred.
    fn figures(&self) -> Vec<Figure> {
        let all = [
            ("Oneiros: loans", "", &self.counts),
            ("Oneiros: from the lack of KV to a loan, p50 of a tenant", "ms", &self.grant_ms),
            ("Oneiros: from revoking to the return, p50 of a tenant", "ms", &self.revoke_ms),
        ];
        let measured = all.into_iter().filter(|(.., samples)| !samples.is_empty());
        measured.map(|(name, unit, samples)| Figure::of(name, unit, samples)).collect()
    }
}

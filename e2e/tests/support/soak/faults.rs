//! Injects the planned faults into the tenants of a soak.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sluice_client::run_at;
use tokio::time::Instant;

use super::SoakRun;
use super::plan::fault::{FaultKind, FaultTarget, PlannedFault, Side};
use super::stats::SoakStats;
use super::tenant::SoakTenant;

/// Limit for a loan to appear; then another tenant is the target.
const NO_TARGET: Duration = Duration::from_millis(4_000);

/// Injects all faults, from `begun` on. Returns when all tenants have recovered.
pub async fn inject(stage: &Arc<SoakRun>, faults: &[PlannedFault], begun: Instant) {
    let faults = faults.iter().cloned().map(|fault| {
        let (stage, at) = (stage.clone(), fault.at);
        let fault = async move {
            let tenant = target(&stage, fault.target).await;
            kill_or_stop(&stage, tenant, fault.side, fault.kind).await;
        };
        (at, fault)
    });
    run_at(begun, faults).await;
}

/// Selects the target by the current loans.
async fn target(stage: &SoakRun, whom: FaultTarget) -> usize {
    type Bytes = fn(&SoakTenant) -> u64;
    let (bytes, other): (Bytes, usize) = match whom {
        FaultTarget::Tenant(tenant) => return tenant,
        FaultTarget::Borrower(other) => (|member| member.borrowed.load(Ordering::Relaxed), other),
        FaultTarget::Lender(other) => (|member| member.lent.load(Ordering::Relaxed), other),
    };
    let until = Instant::now() + NO_TARGET;
    while Instant::now() < until {
        let tenants = stage.tenants.iter().enumerate();
        let most = tenants.map(|(tenant, member)| (bytes(member), tenant)).max();
        if let Some((1.., tenant)) = most {
            return tenant;
        }
        tokio::time::sleep(super::PAUSE).await;
    }
    other
}

/// Injects a fault into one process. Returns when it, or its successor, works again; `false` if the process did not
/// run.
pub async fn kill_or_stop(stage: &SoakRun, tenant: usize, side: Side, kind: FaultKind) -> bool {
    let member = &stage.tenants[tenant];
    let Some(pid) = member.process(&stage.run, stage.up, side) else {
        stage.stats.count(|tally| tally.missed += 1);
        return false;
    };
    match (kind, side) {
        (FaultKind::Stop(length), _) => stop(stage, pid, length).await,
        (FaultKind::Kill, Side::Engine) => {
            stage.stats.count(|tally| tally.engines_killed += 1);
            member.engine_kills.fetch_add(1, Ordering::Relaxed);
            send(pid, Signal::KILL);
        }
        (FaultKind::Kill, Side::Sidecar) => {
            stage.stats.count(|tally| tally.sidecars_killed += 1);
            let kill = member.loses_sidecar();
            send(pid, Signal::KILL);
            member.has_restarted(kill, pid).await;
        }
    }
    true
}

async fn stop(stage: &SoakRun, pid: u32, length: Duration) {
    let outlasts = length.as_millis() > u128::from(stage.loan_ms);
    stage.stats.count(|tally: &mut SoakStats| *tally.stops(outlasts) += 1);
    stage.stopped.fetch_add(1, Ordering::Relaxed);
    send(pid, Signal::STOP);
    tokio::time::sleep(length).await;
    send(pid, Signal::CONT);
    stage.stopped.fetch_sub(1, Ordering::Relaxed);
}

/// The process may have exited.
fn send(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

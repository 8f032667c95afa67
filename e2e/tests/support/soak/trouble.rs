//! Does to the tenants of a soak what its plan says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Stage;
use super::member::Member;
use super::plan::trouble::{Deed, Side, Trouble, Whom};
use super::tally::Tally;

/// A loan is waited for so long; then somebody else is hit.
const NOBODY: Duration = Duration::from_millis(4_000);

/// All of it, from `begun` on. Ends when all tenants are back.
pub async fn inflict(stage: &Arc<Stage>, troubles: &[Trouble], begun: Instant) {
    let mut under_way = JoinSet::new();
    for trouble in troubles.iter().cloned() {
        let stage = stage.clone();
        under_way.spawn(async move {
            tokio::time::sleep_until(begun + trouble.at).await;
            let tenant = target(&stage, trouble.whom).await;
            strike(&stage, tenant, trouble.side, trouble.deed).await;
        });
    }
    under_way.join_all().await;
}

/// Whom it hits, by what is known at this moment.
async fn target(stage: &Stage, whom: Whom) -> usize {
    type Bytes = fn(&Member) -> u64;
    let (bytes, other): (Bytes, usize) = match whom {
        Whom::Tenant(tenant) => return tenant,
        Whom::Borrower(other) => (|member| member.borrowed.load(Ordering::Relaxed), other),
        Whom::Lender(other) => (|member| member.lent.load(Ordering::Relaxed), other),
    };
    let until = Instant::now() + NOBODY;
    while Instant::now() < until {
        let tenants = stage.members.iter().enumerate();
        let most = tenants.map(|(tenant, member)| (bytes(member), tenant)).max();
        if let Some((1.., tenant)) = most {
            return tenant;
        }
        tokio::time::sleep(super::PAUSE).await;
    }
    other
}

/// Hits one process. Ends when it, or its successor, works again; whether it was there to be hit.
pub async fn strike(stage: &Stage, tenant: usize, side: Side, deed: Deed) -> bool {
    let member = &stage.members[tenant];
    let Some(pid) = member.process(&stage.run, stage.up, side) else {
        stage.tally.count(|tally| tally.missed += 1);
        return false;
    };
    match (deed, side) {
        (Deed::Stop(length), _) => stop(stage, pid, length).await,
        (Deed::Kill, Side::Engine) => {
            stage.tally.count(|tally| tally.engines_killed += 1);
            member.engine_kills.fetch_add(1, Ordering::Relaxed);
            send(pid, Signal::KILL);
        }
        (Deed::Kill, Side::Sidecar) => {
            stage.tally.count(|tally| tally.sidecars_killed += 1);
            let kill = member.loses_sidecar();
            send(pid, Signal::KILL);
            member.comes_back(kill, pid).await;
        }
    }
    true
}

async fn stop(stage: &Stage, pid: u32, length: Duration) {
    let outlasts = length.as_millis() > u128::from(stage.loan_ms);
    stage.tally.count(|tally: &mut Tally| *tally.stops(outlasts) += 1);
    stage.stopped.fetch_add(1, Ordering::Relaxed);
    send(pid, Signal::STOP);
    tokio::time::sleep(length).await;
    send(pid, Signal::CONT);
    stage.stopped.fetch_sub(1, Ordering::Relaxed);
}

/// It may have gone meanwhile.
fn send(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

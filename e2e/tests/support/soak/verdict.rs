//! Checks after the load of a soak, when the tenants are idle.

use std::process::Command;
use std::sync::atomic::Ordering;

use sluice_wire::State;

use super::byte_audit::{chunk_bytes, open_files};
use super::finding::Finding;
use super::tenant::SoakTenant;
use super::watchdog::{self, brief, within};
use super::{SoakRun, place};
use crate::support::model::binary;

/// Returns the states of all tenants, once all have one.
async fn states(stage: &SoakRun) -> Option<Vec<State>> {
    let mut states = Vec::new();
    for member in &stage.tenants {
        states.push(member.state().await?);
    }
    Some(states)
}

/// Waits until all loans are returned, no tenant works, and the kernel's count agrees with the accounting.
pub async fn are_all_idle(stage: &SoakRun) {
    let home = within(stage.home_seconds, async || {
        states(stage).await.is_some_and(|states| states.iter().all(is_loan_returned))
    });
    if !home.await {
        stage
            .findings
            .add(Finding::Accounting(format!("loans are out\n{}", watchdog::report_stuck(stage).await)));
        return;
    }
    let counted = within(10, async || {
        let states = states(stage).await.unwrap_or_default();
        !states.is_empty()
            && states.iter().zip(&stage.tenants).all(|(state, member)| is_counted(state, member))
    });
    if !counted.await {
        let bytes: Vec<_> = stage.tenants.iter().map(|member| bytes_there(member)).collect();
        let stuck_report = watchdog::report_stuck(stage).await;
        stage.findings.add(Finding::Accounting(format!("there are {bytes:?} bytes\n{stuck_report}")));
    }
    // A tenant that falls asleep at this moment holds memory during its copies, and another one may do so at the
    // next poll.
    let idle = |states: &Vec<State>| states.iter().all(|state| state.kv.layer_blocks_used == 0);
    let mut last = None;
    within(10, async || {
        last = states(stage).await;
        last.as_ref().is_some_and(idle)
    })
    .await;
    if let Some(states) = last {
        balance(stage, &states);
        states.iter().zip(&stage.tenants).for_each(|(state, member)| of_tenant(stage, state, member));
    }
}

fn is_loan_returned(state: &State) -> bool {
    let place = place(state);
    (place.lent_bytes, place.borrowed_bytes, place.grants.len()) == (0, 0, 0)
}

fn bytes_there(member: &SoakTenant) -> Option<u64> {
    member.now().map(|tenant| chunk_bytes(tenant.record.pid))
}

/// Never a byte more than the accounting has. Chunks restored after the start have no pages before they are used,
/// and the end of a slab's last chunk never has: that much may be missing.
fn is_counted(state: &State, member: &SoakTenant) -> bool {
    // A tenant that shares with no other is not counted.
    if state.peers.is_none() {
        return true;
    }
    let held = place(state).held_bytes;
    let unused = state.memory.owners.free_bytes + (state.layers.len() as u64 + 2) * state.memory.chunk_bytes;
    bytes_there(member).is_some_and(|there| there <= held && there + unused >= held)
}

fn balance(stage: &SoakRun, states: &[State]) {
    let sum = |of: fn(&State) -> u64| states.iter().map(of).sum::<u64>();
    let (budgets, shares) = (sum(|s| place(s).budget_bytes), sum(|s| place(s).share_bytes));
    let within = states.iter().all(|s| place(s).balances() && place(s).held_bytes <= place(s).budget_bytes);
    if budgets != shares || shares > stage.capacity_bytes || !within {
        let all: Vec<_> = states.iter().map(brief).collect();
        stage.findings.add(Finding::Accounting(format!("budgets {budgets}, shares {shares}: {all:#?}")));
    }
}

fn of_tenant(stage: &SoakRun, state: &State, member: &SoakTenant) {
    let name = &member.name;
    let left = |what: String| stage.findings.add(Finding::Leak(format!("{name}: {what}: {}", brief(state))));
    let queue = &state.queue;
    if (queue.waiting, queue.running, queue.preempted, state.streams.open) != (0, 0, 0, 0) {
        left("requests".into());
    }
    if state.kv.layer_blocks_used != 0 {
        left("blocks of requests that have ended".into());
    }
    if !state.memory.balances() {
        left("the capacity equation".into());
    }
    let kills = member.engine_kills.load(Ordering::Relaxed);
    if state.engine.restarts > u64::from(kills) {
        let text = format!("{name}: {} engines after {kills} kills: {}", state.engine.restarts, brief(state));
        stage.findings.add(Finding::Ended(text));
    }
    let memory = member.now().map(|tenant| memfds(tenant.record.pid)).unwrap_or_default();
    if memory != stage.memfds {
        left(format!("{memory:?} of {:?}", stage.memfds));
    }
}

/// Returns the memory files that a process has open.
pub fn memfds(pid: u32) -> Vec<String> {
    let mut names: Vec<_> = open_files(pid).into_iter().map(|(_, name)| name).collect();
    names.retain(|name| name.starts_with("/memfd:"));
    names.sort();
    names
}

/// Every sidecar that ended was killed.
pub fn ends(stage: &SoakRun) {
    let said = stage.run.stderr();
    for member in &stage.tenants {
        let start = format!("default/{}: the sidecar ended (", member.name);
        let ends: Vec<_> = said.lines().filter(|line| line.contains(&start)).collect();
        let kills = member.kills().done as usize;
        if ends.len() != kills || !ends.iter().all(|line| line.contains("(signal: 9")) {
            stage
                .findings
                .add(Finding::Ended(format!("{} was killed {kills} times: {ends:#?}", member.name)));
        }
    }
}

/// Every journal leads to the same decisions again.
pub fn journals(stage: &SoakRun) {
    for journal in watchdog::journals(&stage.run.path("journals")) {
        let output = Command::new(binary("sluice-sidecar")).arg("--replay").arg(&journal).output().unwrap();
        // A journal whose writer was killed before its first line is empty.
        if !output.status.success() && std::fs::metadata(&journal).unwrap().len() > 0 {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            stage.findings.add(Finding::Journal(format!("{}: {said}", journal.display())));
        }
    }
}

//! Processes of a pod hang in each state: the peers continue, the hung process is replaced, and the reports name
//! the cause.

mod hang_state;
mod reports;

use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::json;
use sluice_e2e::cluster::within;
use sluice_e2e::hang_limit::HangLimit;
use sluice_wire::State;

use self::hang_state::{HangState, Loads, Views};
use self::reports::Observers;
use super::ledger::Ledger;
use super::{CHAT, CODE, MINUTE, Rows, SUMMARY};
use crate::installed::TENANTS;
use crate::installed::pod::uid;
use crate::installed::processes::{Container, Stopped, container, lives};

/// Limit for the kubelet to kill a process that answers no probe, six probes every 10 s with a timeout of 5 s, and
/// for the process to exit.
const KUBELET_LIMIT: Duration = Duration::from_secs(150);

/// Minimum that the CRD allows.
const HANG_TIMEOUT: Duration = Duration::from_secs(2);

/// The processes of a pod that are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Worker,
    Supervisor,
    Sidecar,
    /// All three processes.
    Whole,
}

/// End of the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// The peers have continued; then it runs again.
    Continued,
    /// The process was killed.
    Dead,
}

/// A row of the table of hangs.
pub struct Row {
    target: Target,
    when: HangState,
    until: Until,
    /// The tenant that hangs.
    culprit: &'static str,
    /// Restarts of the sidecar's and of the engine's container.
    restarts: [u64; 2],
    /// Reason of its `Degraded` condition.
    reported: Option<&'static str>,
}

const fn row(target: Target, when: HangState, until: Until, culprit: &'static str) -> Row {
    let restarts = match (target, until) {
        (Target::Worker, _) | (_, Until::Continued) => [0, 0],
        (Target::Supervisor, Until::Dead) => [0, 1],
        (Target::Sidecar, Until::Dead) => [1, 0],
        (Target::Whole, Until::Dead) => [1, 1],
    };
    let reported = match (target, until, when) {
        (Target::Worker, Until::Dead, _) => Some("EngineHung"),
        (Target::Sidecar, ..) | (Target::Whole, _, HangState::Computing | HangState::Waiting) => {
            Some("SidecarHung")
        }
        // Its own sidecar runs and kills nothing within this time. The kubelet reports a hung supervisor.
        _ => None,
    };
    Row { target, when, until, culprit, restarts, reported }
}

/// Rows that run with every change. The kubelet delays each further restart of a container, so no container has two.
pub const ROWS: [Row; 5] = [
    row(Target::Worker, HangState::Computing, Until::Dead, CHAT),
    row(Target::Sidecar, HangState::Computing, Until::Continued, SUMMARY),
    row(Target::Supervisor, HangState::Remapping, Until::Dead, CHAT),
    row(Target::Sidecar, HangState::Computing, Until::Dead, CHAT),
    row(Target::Whole, HangState::Computing, Until::Dead, CODE),
];

/// Rows that run each night: the other states, of which `e2e/tests/hangs.rs` meets most without a node. No tenant has
/// many restarts here either.
pub const NIGHTLY_ROWS: [Row; 13] = [
    row(Target::Worker, HangState::Lending, Until::Dead, CHAT),
    row(Target::Worker, HangState::Borrowing, Until::Dead, CHAT),
    row(Target::Worker, HangState::Remapping, Until::Dead, CHAT),
    row(Target::Worker, HangState::Waking, Until::Dead, CHAT),
    row(Target::Supervisor, HangState::Computing, Until::Continued, CHAT),
    row(Target::Supervisor, HangState::Lending, Until::Continued, CHAT),
    row(Target::Supervisor, HangState::Waking, Until::Continued, CHAT),
    row(Target::Sidecar, HangState::Lending, Until::Dead, SUMMARY),
    row(Target::Sidecar, HangState::Borrowing, Until::Dead, SUMMARY),
    row(Target::Sidecar, HangState::Remapping, Until::Dead, CODE),
    row(Target::Sidecar, HangState::Waking, Until::Dead, CHAT),
    row(Target::Whole, HangState::Computing, Until::Continued, SUMMARY),
    row(Target::Whole, HangState::Waiting, Until::Dead, CHAT),
];

impl Row {
    fn title(&self) -> String {
        format!("{:?} of {} stopped while {:?}", self.target, self.culprit, self.when)
    }

    /// Expected alerts, each with its tenant. `detector` detected the hang, and its own alert has this text.
    fn alerts(&self, detector: Option<(&'static str, &'static str)>) -> Vec<(&'static str, &'static str)> {
        let computing = self.when == HangState::Computing;
        let own = match (self.target, self.until) {
            (Target::Worker, Until::Dead) => Some("its engine hung and was killed"),
            (Target::Sidecar, Until::Dead) => Some("its sidecar hung and was killed"),
            (_, Until::Continued) if computing && self.target != Target::Supervisor => {
                Some("a peer took over the time slice that it held too long")
            }
            _ => None,
        };
        let own = own.map(|words| (self.culprit, words));
        own.into_iter().chain(detector).collect()
    }

    fn peers(&self) -> impl Iterator<Item = &'static str> {
        TENANTS.into_iter().filter(|name| *name != self.culprit)
    }

    /// Checks the culprit's own report of its hang.
    async fn expected_reports(&self, before: &State, views: &Views) {
        let (what, now) = (self.title(), views.state(self.culprit).await);
        let hangs = now.engine.hangs;
        let overtaken =
            |state: &State| state.peers.as_ref()?.time_slice.as_ref().map(|slice| slice.lost_total);
        match (self.target, self.until) {
            (Target::Worker, Until::Dead) => {
                assert_eq!(hangs, before.engine.hangs + 1, "{what}: {:?}", now.engine)
            }
            (_, Until::Continued) => assert_eq!(hangs, before.engine.hangs, "{what}: {:?}", now.engine),
            _ => {}
        }
        if self.target == Target::Sidecar && self.until == Until::Dead {
            let killed = now.sidecar_hangs.as_ref().map_or(0, |hangs| hangs.total);
            let killed_before = before.sidecar_hangs.as_ref().map_or(0, |hangs| hangs.total);
            assert_eq!(killed, killed_before + 1, "{what}: {:?}", now.sidecar_hangs);
        }
        if (self.until, self.when) == (Until::Continued, HangState::Computing)
            && self.target != Target::Supervisor
        {
            assert!(
                overtaken(&now) > overtaken(before),
                "{what}: no peer took over its time slice: {:?}, {:?}; before: {:?}, {:?}",
                now.peers,
                now.engine.work,
                before.peers,
                before.engine.work
            );
        }
    }
}

/// Containers of a pod.
struct Processes {
    sidecar: Container,
    engine: Container,
}

impl Processes {
    fn of(rows: &Rows<'_>, tenant: &str) -> Processes {
        let pod = rows.product.pod(tenant);
        Processes { sidecar: container(&pod, "sidecar"), engine: container(&pod, "engine") }
    }

    fn worker(&self) -> Pid {
        self.engine.worker().expect("who computes has an engine")
    }

    fn all(&self, target: Target) -> Vec<Pid> {
        let supervisor = || self.engine.first().expect("it runs");
        let sidecar = || self.sidecar.first().expect("it runs");
        match target {
            Target::Worker => vec![self.worker()],
            Target::Supervisor => vec![supervisor()],
            Target::Sidecar => vec![sidecar()],
            Target::Whole => vec![sidecar(), supervisor(), self.worker()],
        }
    }
}

/// Waits until hung processes have been killed.
async fn dead(what: &str, processes: &[Pid]) {
    let begun = Instant::now();
    let dead = async || {
        let left: Vec<_> = processes.iter().filter(|pid| lives(**pid)).collect();
        assert!(
            left.is_empty() || begun.elapsed() < KUBELET_LIMIT,
            "{what}: of {processes:?} there are {left:?}"
        );
        left.is_empty().then_some(())
    };
    within(2 * KUBELET_LIMIT, &format!("{what}: it is killed"), dead).await;
}

impl Rows<'_> {
    /// Other tests stop engines to hold them, so only this test has a short deadline.
    pub async fn hung_process_in_pod_is_replaced_and_peers_continue(&self, rows: &[Row]) {
        self.product.read_often();
        self.spec_of_all(&json!({"engine": {"hangTimeoutSeconds": HANG_TIMEOUT.as_secs()}})).await;
        let ledger = Ledger::of(self.product);
        for row in rows {
            self.hangs(row, &ledger).await;
        }
    }

    /// Changes a field that replaces the pods of all tenants.
    async fn spec_of_all(&self, spec: &serde_json::Value) {
        let before = TENANTS.map(|name| uid(&self.product.pod(name)).to_owned());
        for name in TENANTS {
            self.product.change("modeltenant", name, spec);
        }
        for (name, before) in TENANTS.iter().zip(before) {
            self.product.ready_again(name, &|pod| *uid(pod) != before).await;
        }
    }

    async fn hangs(&self, row: &Row, ledger: &Ledger) {
        let (what, views) = (row.title(), Views::of(self.product));
        let mut people = Observers::of(self.product).await;
        let before = Processes::of(self, row.culprit);
        let restarts = [&before.sidecar, &before.engine].map(|one| one.restarts);
        let pod = uid(&self.product.pod(row.culprit)).to_owned();
        let mut loads = Loads::of(self, row.when, row.culprit);
        let (pinned, state) = row.when.meet(&views, row.culprit, &before, &mut loads).await;
        let targets = before.all(row.target);
        let bound = HangLimit::start(&state, HANG_TIMEOUT);
        let stopped: Vec<Stopped> = targets.iter().copied().map(Stopped::stop).collect();
        let still = async || stopped.iter().all(Stopped::is_still).then_some(());
        within(MINUTE, &format!("{what}: {targets:?} stand still"), still).await;
        if row.target == Target::Worker {
            // The hang of an idle engine is not detected.
            loads.send_to(&[row.culprit]);
        }
        let pinned = if targets.contains(&before.worker()) {
            Some(pinned)
        } else {
            pinned.go_on();
            None
        };
        let took = self.peers_continue(row, &views, &bound).await;
        eprintln!("{what}: its peers went on after {took:?}, {:?} are allowed", bound.allows());
        if row.until == Until::Dead {
            if row.when == HangState::Waiting {
                people.see_a_tenant_that_was_skipped(row.culprit).await;
            }
            dead(&what, &targets).await;
            eprintln!("{what}: it was dead after {:?}", bound.elapsed());
        }
        drop((stopped, pinned));
        row.when.over(self.product, row.culprit).await;
        let wanted = [restarts[0] + row.restarts[0], restarts[1] + row.restarts[1]];
        let again = |now: &serde_json::Value| {
            let is = ["sidecar", "engine"].map(|name| container(now, name).restarts);
            *uid(now) == pod && is == wanted
        };
        self.product.ready_again(row.culprit, &again).await;
        row.expected_reports(&state, &views).await;
        let detector =
            people.are_events_reported(row.culprit, row.reported, bound.stopped_unix_ms(), &views).await;
        people.are_alerted(&row.alerts(detector)).await;
        loads.end(row.culprit, row.target != Target::Worker).await;
        for name in TENANTS {
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{what}: {name} afterwards");
        }
        self.are_all_loans_returned(ledger).await;
    }

    /// Waits until each peer runs steps. Returns the duration.
    async fn peers_continue(&self, row: &Row, views: &Views, bound: &HangLimit) -> Duration {
        let (what, mut before) = (row.title(), Vec::new());
        for name in row.peers() {
            before.push((name, views.state(name).await.figures.steps_total));
        }
        // A load may have finished.
        let asked = row.peers().map(|name| self.product.complete(name, 4));
        let steps = async {
            for (name, before) in before {
                let ran = async || (views.state(name).await.figures.steps_total > before + 1).then_some(());
                within(MINUTE, &format!("{what}: {name} goes on"), ran).await;
            }
            (bound.elapsed(), bound.allows())
        };
        let (answers, (took, allowed)) = tokio::join!(futures_util::future::join_all(asked), steps);
        for answer in answers {
            assert!(self.golden.starts_with(&answer), "{what}: {answer:?} next to it");
        }
        assert!(took <= allowed, "{what}: its peers waited {took:?}, {allowed:?} are allowed");
        took
    }

    /// A tenant hangs in its time slice, and another process in the guard of the ledger: no peer can take over the
    /// time slice. The peers report the tenant that they wait for until all hung processes have been killed.
    pub async fn stuck_slice_is_reported(&self) {
        let ledger = Ledger::of(self.product);
        let (culprit, views) = (SUMMARY, Views::of(self.product));
        let mut people = Observers::of(self.product).await;
        let before = Processes::of(self, culprit);
        let restarts = [&before.sidecar, &before.engine].map(|one| one.restarts);
        let mut loads = Loads::of(self, HangState::Computing, culprit);
        let (pinned, state) = HangState::Computing.meet(&views, culprit, &before, &mut loads).await;
        let guard = ledger.guard().await;
        let targets = before.all(Target::Whole);
        let stopped: Vec<Stopped> = targets.iter().copied().map(Stopped::stop).collect();
        let since = HangLimit::start(&state, HANG_TIMEOUT).stopped_unix_ms();
        loads.send_to(&[CHAT, CODE]);
        people.held_slice_is_reported(CHAT, culprit, since).await;
        drop(guard);
        dead("the holder of the slice", &targets).await;
        drop((stopped, pinned));
        let again = |now: &serde_json::Value| {
            ["sidecar", "engine"].map(|name| container(now, name).restarts) == restarts.map(|count| count + 1)
        };
        self.product.ready_again(culprit, &again).await;
        loads.end(culprit, true).await;
        self.are_all_loans_returned(&ledger).await;
    }
}

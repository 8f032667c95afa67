//! States in which a process is stopped: how a tenant reaches each state and stays in it until the stop.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Pid;
use serde_json::json;
use sluice_e2e::cluster::within;
use sluice_e2e::hang_limit::has_reached;
use sluice_wire::State;
use sluice_wire::state::Phase;
use tokio::task::JoinSet;

use super::super::{MINUTE, Rows};
use super::{Processes, Target};
use crate::installed::admin::{Admin, Credential};
use crate::installed::processes::{Stopped, Traced};
use crate::installed::{Load, Product, TENANTS};

/// Poll interval of a state.
const GLANCE: Duration = Duration::from_millis(2);
/// Time for a sidecar to see all that its worker finished before the stop: two polls.
const SETTLED: Duration = Duration::from_millis(100);
/// Delay of each mapping change in a slowed engine.
const SLOWED: &str = "--inject=mmap:delay_exit=60000";

/// State in which a process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangState {
    /// A step of its time slice runs.
    Computing,
    /// It has lent memory.
    Lending,
    /// It has borrowed memory.
    Borrowing,
    /// It has requests, and a peer has the time slice.
    Waiting,
    /// Its engine changes the backing of its addresses.
    Remapping,
    /// It was hibernated and wakes for a request.
    Waking,
}

/// Reads the states of all tenants with the operator's credential.
pub struct Views {
    operator: Credential,
    admins: BTreeMap<&'static str, Admin>,
}

impl Views {
    pub fn of(product: &Product<'_>) -> Views {
        let admin = |name| (name, Admin::of(product, name, &product.address(name)));
        Views { operator: Credential::of_operator(product), admins: TENANTS.map(admin).into() }
    }

    pub async fn state(&self, tenant: &str) -> State {
        serde_json::from_value(self.admins[tenant].state(&self.operator).await).unwrap()
    }

    /// Whether a peer reports that `tenant` has the time slice.
    async fn sees_as_holder(&self, tenant: &str) -> bool {
        let other = TENANTS.into_iter().find(|name| *name != tenant).expect("it has peers");
        let slice = self.state(other).await.peers.and_then(|place| place.time_slice);
        let holder = slice.and_then(|slice| slice.holder);
        holder.is_some_and(|holder| holder.ends_with(&format!("/{tenant}")))
    }
}

impl HangState {
    fn is_met(self, state: &State) -> bool {
        let Some(place) = &state.peers else { return false };
        let holds = place.time_slice.as_ref().is_some_and(|slice| slice.holds);
        match self {
            HangState::Computing => holds && has_reached(state, "step"),
            HangState::Lending => place.lent_bytes > 0,
            HangState::Borrowing => place.borrowed_bytes > 0,
            HangState::Waiting => !holds && state.queue.running > 0,
            HangState::Remapping => has_reached(state, "remapping"),
            HangState::Waking => state.phase == Phase::Waking,
        }
    }

    /// Waits for the state and stops the worker in it, so that the state stays. A tenant waits as long as its
    /// sidecar is stopped.
    pub(super) async fn meet(
        self,
        views: &Views,
        tenant: &str,
        processes: &Processes,
        loads: &mut Loads<'_, '_>,
    ) -> (Stopped, State) {
        let worker = processes.worker();
        if self == HangState::Waking {
            return self.wake(views, tenant, worker, loads).await;
        }
        let slowed = (self == HangState::Remapping).then(|| Traced::attach(worker, "mmap", SLOWED));
        let met = async || {
            loads.keep_sent();
            tokio::time::sleep(GLANCE).await;
            let state = views.state(tenant).await;
            if !self.is_met(&state) {
                return None;
            }
            if self == HangState::Waiting {
                let stopped = Stopped::stop(processes.all(Target::Sidecar)[0]);
                return (!views.sees_as_holder(tenant).await).then_some((stopped, state));
            }
            let stopped = Stopped::stop(worker);
            tokio::time::sleep(SETTLED).await;
            let state = views.state(tenant).await;
            self.is_met(&state).then_some((stopped, state))
        };
        let met = within(2 * MINUTE, &format!("{tenant} is {self:?}"), met).await;
        // The worker stays stopped. A tracer would delay the report of its exit.
        drop(slowed);
        met
    }

    /// A small model wakes at once, so its worker is stopped before the request is sent.
    async fn wake(
        self,
        views: &Views,
        tenant: &str,
        worker: Pid,
        loads: &mut Loads<'_, '_>,
    ) -> (Stopped, State) {
        let sleeps = json!({"idle": {"afterSeconds": 1, "hibernateAfterSeconds": 2}});
        loads.rows.product.change("modeltenant", tenant, &sleeps);
        let asleep = async || (views.state(tenant).await.phase == Phase::Hibernated).then_some(());
        within(2 * MINUTE, &format!("{tenant} hibernates"), asleep).await;
        let stopped = Stopped::stop(worker);
        loads.keep_sent();
        let wakes = async || Some(views.state(tenant).await).filter(|state| self.is_met(state));
        let state = within(MINUTE, &format!("{tenant} wakes"), wakes).await;
        (stopped, state)
    }

    /// Reverts the changes that brought a tenant into this state.
    pub async fn over(self, product: &Product<'_>, tenant: &str) {
        if self == HangState::Waking {
            product.change(
                "modeltenant",
                tenant,
                &json!({"idle": {"hibernateAfterSeconds": null, "afterSeconds": null}}),
            );
        }
    }
}

/// Requests to tenants during a hang.
pub struct Loads<'a, 'p> {
    rows: &'a Rows<'p>,
    load: Load,
    sent: BTreeMap<&'static str, JoinSet<Option<String>>>,
}

impl<'a, 'p> Loads<'a, 'p> {
    /// Creates the load that brings `tenant` into the state `when`.
    pub fn of(rows: &'a Rows<'p>, when: HangState, tenant: &str) -> Loads<'a, 'p> {
        let others = TENANTS.into_iter().filter(|name| *name != tenant);
        let own = TENANTS.into_iter().filter(|name| *name == tenant);
        // A lender must be idle, and a peer must have too much work.
        let (names, count): (Vec<_>, _) = match when {
            HangState::Computing | HangState::Waiting => (TENANTS.into(), 12),
            HangState::Lending => (others.take(1).collect(), 40),
            HangState::Borrowing => (own.collect(), 40),
            HangState::Remapping => (own.chain(others.take(1)).collect(), 40),
            HangState::Waking => (own.collect(), 2),
        };
        let sent = names.into_iter().map(|name| (name, JoinSet::new())).collect();
        Loads { rows, load: rows.load.part(count), sent }
    }

    /// Sends all requests again to tenants that have answered them all.
    fn keep_sent(&mut self) {
        for (name, requests) in &mut self.sent {
            self.load.keep_sent(self.rows.product, name, requests);
        }
    }

    /// Sends the load to these tenants as well.
    pub fn send_to(&mut self, tenants: &[&'static str]) {
        for name in tenants {
            self.load.keep_sent(self.rows.product, name, self.sent.entry(name).or_default());
        }
    }

    /// Waits for the answers. Those of `culprit` may be cut if `may_be_cut`.
    pub async fn end(self, culprit: &str, may_be_cut: bool) {
        for (name, requests) in self.sent {
            let cut = self.load.ended(requests).await;
            assert!(
                cut == 0 || (name == culprit && may_be_cut),
                "{cut} answers of {name} were cut next to {culprit}"
            );
        }
    }
}

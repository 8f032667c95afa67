//! Processes that hang instead of exiting: each process of a tenant is stopped in each state, its peers continue,
//! and the tenant recovers by itself.

use std::time::Duration;

use rustix::process::Signal;
use sluice_client::RequestError;
use sluice_e2e::hang_limit::{HangLimit, has_reached};
use sluice_wire::State;
use tokio::task::JoinHandle;

use crate::support::tenant::{greedy, prompt};
use crate::support::three_tenants::{self, RETURN_AFTER_CRASHES, ThreeTenants, same, tenant_index};
use crate::support::wait::within;
use crate::support::{Answer, Tenant, TestEnv, eventually, processes, slow};

mod waking;
mod whole_tenant;

/// Limit for the kill of a hung sidecar, and of a supervisor that starts no engine for 15 s; time in which the node
/// is slow counts at least a quarter.
const KILLED: Duration = Duration::from_secs(90);
/// Time after which a supervisor kills a sidecar that does not run.
const SIDECAR_LIMIT: Duration = Duration::from_secs(12);
/// The default of `hangTimeoutSeconds`.
const HANG_TIMEOUT: Duration = Duration::from_secs(2);
/// Delays per layer of a step and per change of mappings, so that the test can stop a process in the middle.
const SLOWED: &str = "--layer-delay-ms 2 --remap-delay-ms 60";

/// A process of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    Worker,
    Supervisor,
    Sidecar,
}

/// State in which it is stopped.
#[derive(Clone, Copy, Debug)]
enum When {
    /// A step of its time slice runs.
    Computing,
    /// It has lent memory.
    Lending,
    /// It has borrowed memory.
    Borrowing,
    /// Its engine changes the backing of its addresses.
    Remapping,
}

impl When {
    fn is_met(self, state: &State) -> bool {
        let place = tenant_index(state);
        let holds = place.time_slice.as_ref().is_some_and(|slice| slice.holds);
        match self {
            When::Computing => holds && has_reached(state, "step"),
            When::Lending => place.lent_bytes > 0,
            When::Borrowing => place.borrowed_bytes > 0,
            When::Remapping => has_reached(state, "remapping"),
        }
    }
}

/// Returns the process of a tenant. Its state has the pid of its engine.
fn process(tenant: &Tenant, state: &State, stopped: Stopped) -> u32 {
    let engine = state.engine.pid.expect("an engine is attached");
    match stopped {
        Stopped::Worker => engine,
        Stopped::Supervisor => processes::parent(engine),
        Stopped::Sidecar => tenant.record.pid,
    }
}

/// Requests that were sent to the peers of a hung tenant.
struct PeerRequests(Vec<JoinHandle<Result<Answer, RequestError>>>);

impl PeerRequests {
    /// Waits until all are answered. They are queued behind the load, so this can take as long as the load.
    async fn answered(self) {
        for request in self.0 {
            request.await.unwrap().unwrap();
        }
    }
}

/// Waits until each of `others` has run a step. Returns the duration, and the requests that make them run.
async fn until_steps(bound: &HangLimit, what: &str, others: &[&Tenant]) -> (Duration, PeerRequests) {
    let (mut before, mut requests) = (Vec::new(), Vec::new());
    for other in others {
        before.push(other.state().await.figures.steps_total);
        // Its load may have finished.
        let tenant = (*other).clone();
        requests.push(tokio::spawn(async move { tenant.complete(&greedy(&prompt(99, 20), 4)).await }));
    }
    for (other, before) in others.iter().zip(before) {
        let ran = |state: &State| state.figures.steps_total > before + 1;
        eventually(what, async || {
            let late = bound.elapsed() > 2 * bound.allows();
            assert!(!late, "{what}: a peer stands still: {:?}", other.try_state().await);
            other.try_state().await.filter(ran)
        })
        .await;
    }
    let (took, allowed) = (bound.elapsed(), bound.allows());
    assert!(took <= allowed, "{what}: peers waited {took:?}, {allowed:?} are allowed");
    (took, PeerRequests(requests))
}

/// Checks that a sidecar that was started `starts` times reports the hangs of all of its predecessors; the last one
/// was stopped for at least `least`.
async fn are_hangs_reported(tenant: &Tenant, starts: usize, least: Duration) {
    let hangs = tenant.state().await.sidecar_hangs.expect("it reports them");
    assert_eq!(hangs.total, starts as u64 - 1, "{hangs:?}");
    assert!(Duration::from_millis(hangs.waited_ms) >= least, "{hangs:?}");
}

/// Three loaded tenants, of which one is about to hang.
struct Case<'a, 'w> {
    trio: &'a mut ThreeTenants<'w>,
    baseline: &'a [Vec<Answer>],
    /// Starts of each sidecar.
    starts: &'a mut [usize; 3],
}

impl Case<'_, '_> {
    /// Stops a process of the first tenant in the state `when`, and waits until its peers and the tenant itself
    /// continue.
    async fn run(&mut self, stopped: Stopped, when: When) {
        let what = format!("{stopped:?} stopped while {when:?}");
        let met = |state: &State| state.engine.pid.is_some() && when.is_met(state);
        let (loads, victim, state) = self.trio.find_loaded_tenant(&what, met).await;
        let pid = process(&self.trio.tenants[victim], &state, stopped);
        processes::signal(pid, Signal::STOP);
        let bound = HangLimit::start(&state, HANG_TIMEOUT);
        let (took, requests) = until_steps(&bound, &what, &self.trio.others(victim)).await;
        requests.answered().await;
        eprintln!("{what}: peers went on after {took:?}, {:?} are allowed", bound.allows());
        match stopped {
            Stopped::Worker => self.engine_is_replaced(victim, &state).await,
            Stopped::Supervisor => processes::signal(pid, Signal::CONT),
            Stopped::Sidecar => self.sidecar_is_replaced(victim, pid).await,
        }
        for (index, load) in loads.into_iter().enumerate() {
            let mut answers = three_tenants::ended(load).await;
            let mut expected = self.baseline[index].clone();
            if stopped == Stopped::Sidecar && index == victim {
                let mut came = answers.iter().map(Result::is_ok);
                expected.retain(|_| came.next().unwrap());
                answers.retain(Result::is_ok);
            }
            same(index, answers, &expected);
        }
        self.trio.are_all_loans_returned(RETURN_AFTER_CRASHES).await;
    }

    async fn engine_is_replaced(&self, victim: usize, before: &State) {
        let replaced = |state: &State| {
            let pid = state.engine.pid;
            state.engine.hangs > before.engine.hangs && pid.is_some() && pid != before.engine.pid
        };
        let state = self.trio.tenants[victim].until("its engine is replaced", replaced).await;
        let hang = state.engine.last_hang.expect("it is reported");
        assert!(!hang.alive && hang.waited_ms >= hang.limit_ms, "{hang:?}");
    }

    async fn sidecar_is_replaced(&mut self, victim: usize, pid: u32) {
        let dead = async || (!processes::alive(pid)).then_some(());
        within(KILLED, "its engine's supervisor kills it", dead).await;
        self.starts[victim] += 1;
        let name = self.trio.tenants[victim].record.name.clone();
        self.trio.tenants[victim] = self.trio.up.ready_again(&name, self.starts[victim]).await;
        are_hangs_reported(&self.trio.tenants[victim], self.starts[victim], SIDECAR_LIMIT).await;
    }
}

/// Runs cases one after another on the same tenants.
async fn cases(cases: &[(Stopped, When)]) {
    let world = TestEnv::new();
    let binaries = world.special_binaries(SLOWED);
    let mut trio = ThreeTenants::start_of(&binaries, &world, "Oneiros").await;
    let baseline: Vec<_> = trio.baseline().await.into_iter().map(|(answers, _)| answers).collect();
    let mut starts = [1; 3];
    for (stopped, when) in cases {
        Case { trio: &mut trio, baseline: &baseline, starts: &mut starts }.run(*stopped, *when).await;
    }
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_worker_is_replaced_and_peers_continue() {
    cases(&[When::Computing, When::Borrowing].map(|when| (Stopped::Worker, when))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_sidecar_is_replaced_and_peers_continue() {
    cases(&[When::Lending, When::Remapping].map(|when| (Stopped::Sidecar, when))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_is_stopped_disturbs_no_stream() {
    cases(&[(Stopped::Supervisor, When::Remapping)]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "cargo xtask nightly: the states that the three tests above leave out"]
async fn process_that_stops_in_any_other_state_is_replaced() {
    cases(&[
        (Stopped::Worker, When::Lending),
        (Stopped::Worker, When::Remapping),
        (Stopped::Sidecar, When::Computing),
        (Stopped::Sidecar, When::Borrowing),
        (Stopped::Supervisor, When::Computing),
        (Stopped::Supervisor, When::Lending),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_stopped_for_good_is_replaced_and_its_streams_go_on_with_the_same_tokens() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 6, 30).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(5).await;
    let engine = tenant.engine().await;
    processes::signal(engine, Signal::STOP);
    assert_eq!(stream.finish().await.unwrap(), expected);
    let state = tenant.state().await;
    assert_ne!(state.engine.pid, Some(engine));
    assert_eq!((state.engine.hangs, state.engine.restarts), (1, 1));
    let hang = state.engine.last_hang.expect("it is reported");
    assert_eq!((hang.during.as_str(), hang.alive), ("step", false));
    assert!(!processes::alive(engine));
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_starts_no_engine_is_replaced_and_the_streams_go_on() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 7, 30).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(5).await;
    let engine = tenant.engine().await;
    let supervisor = processes::parent(engine);
    processes::signal(supervisor, Signal::STOP);
    processes::signal(engine, Signal::KILL);
    assert_eq!(stream.finish().await.unwrap(), expected);
    assert!(!processes::alive(supervisor), "it was stopped and not continued");
    up.end_cleanly().await;
}

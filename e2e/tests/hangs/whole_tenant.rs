//! Processes that are stopped in their tenant's time slice and continue later, and a tenant whose processes are all
//! stopped. SIGCONT after a takeover changes nothing.

use std::time::Duration;

use rustix::process::Signal;
use sluice_e2e::hang_limit::HangLimit;
use sluice_wire::State;
use sluice_wire::state::TimeSliceState;

use super::{HANG_TIMEOUT, KILLED, SLOWED, Stopped, When, are_hangs_reported, process, until_steps};
use crate::support::three_tenants::{self, RETURN_AFTER_CRASHES, ThreeTenants, same, tenant_index};
use crate::support::wait::within;
use crate::support::{Answer, TestEnv, eventually, processes};

/// Timeout of a hung engine: longer than a test.
const LATE: Duration = Duration::from_mins(10);
/// All processes of a tenant.
const WHOLE: [Stopped; 3] = [Stopped::Sidecar, Stopped::Supervisor, Stopped::Worker];

fn time_slice(state: &State) -> &TimeSliceState {
    tenant_index(state).time_slice.as_ref().expect("the GPU has time slices")
}

/// Stops processes of the tenant that computes, and continues them once its peers have continued.
async fn frozen_in_its_slice(trio: &ThreeTenants<'_>, baseline: &[Vec<Answer>], stopped: &[Stopped]) {
    let what = format!("{stopped:?} stopped in the slice");
    let (loads, victim, state) =
        trio.find_loaded_tenant("computes", |state| When::Computing.is_met(state)).await;
    let tenant = &trio.tenants[victim];
    let overtaken = time_slice(&state).lost_total;
    let all: Vec<_> = stopped.iter().map(|one| process(tenant, &state, *one)).collect();
    all.iter().for_each(|pid| processes::signal(*pid, Signal::STOP));
    let bound = HangLimit::start(&state, LATE);
    let peers = trio.others(victim);
    let (took, requests) = until_steps(&bound, &what, &peers).await;
    eprintln!("{what}: peers went on after {took:?}");
    let from = format!("default/{}", tenant.record.name);
    let names = |state: &State| {
        time_slice(state).last_takeover.as_ref().is_some_and(|takeover| {
            takeover.from == from && takeover.overdue_ms > 0 && takeover.at_unix_ms >= bound.stopped_unix_ms()
        })
    };
    eventually("a peer names the tenant that hangs", async || {
        let [one, other] = [peers[0].state().await, peers[1].state().await];
        [one, other].iter().any(names).then_some(())
    })
    .await;
    // `sluice up` kills a sidecar that is stopped for longer than `UP_LIMIT`, so this does not wait for the load.
    all.iter().for_each(|pid| processes::signal(*pid, Signal::CONT));
    requests.answered().await;
    for (index, load) in loads.into_iter().enumerate() {
        same(index, three_tenants::ended(load).await, &baseline[index]);
    }
    let after = tenant.state().await;
    assert!(time_slice(&after).lost_total > overtaken, "{:?}", time_slice(&after));
    assert_eq!(
        (after.engine.restarts, after.engine.pid),
        (0, state.engine.pid),
        "{what}: nothing was killed"
    );
    assert!(all.iter().all(|pid| processes::alive(*pid)), "{what}: nothing was killed");
    trio.are_all_loans_returned(RETURN_AFTER_CRASHES).await;
}

/// Engines are killed late here: each of these processes continues after a peer has taken over its time slice.
#[tokio::test(flavor = "multi_thread")]
async fn process_stopped_in_its_slice_resumes_cleanly() {
    let world = TestEnv::new();
    let binaries = world.special_binaries(SLOWED);
    let more = format!(", engine: {{hangTimeoutSeconds: {}}}", LATE.as_secs());
    let trio = ThreeTenants::start_with(&binaries, &world, "Oneiros", &more).await;
    let baseline: Vec<_> = trio.baseline().await.into_iter().map(|(answers, _)| answers).collect();
    for stopped in [&WHOLE[..], &[Stopped::Sidecar], &[Stopped::Worker]] {
        frozen_in_its_slice(&trio, &baseline, stopped).await;
    }
    trio.up.end_cleanly().await;
}

/// `sluice up` kills a sidecar that has not answered six probes, 5 s apart, each with a timeout of 5 s.
const UP_LIMIT: Duration = Duration::from_secs(35);

/// Stops all processes of a tenant for good. Its peers continue, it is replaced, and no old process remains.
async fn stopped_as_a_whole(
    trio: &mut ThreeTenants<'_>,
    baseline: &[Vec<Answer>],
    when: When,
    starts: &mut [usize; 3],
) {
    let what = format!("a whole tenant stopped while {when:?}");
    let met = |state: &State| state.engine.pid.is_some() && when.is_met(state);
    let (loads, victim, state) = trio.find_loaded_tenant(&what, met).await;
    let whole = WHOLE.map(|one| process(&trio.tenants[victim], &state, one));
    whole.into_iter().for_each(|pid| processes::signal(pid, Signal::STOP));
    let bound = HangLimit::start(&state, HANG_TIMEOUT);
    let (took, requests) = until_steps(&bound, &what, &trio.others(victim)).await;
    requests.answered().await;
    eprintln!("{what}: peers went on after {took:?}");
    let dead = async || whole.iter().all(|pid| !processes::alive(*pid)).then_some(());
    within(KILLED, &format!("{what}: all of it is killed"), dead).await;
    let killed = bound.elapsed();
    eprintln!("{what}: all of it was dead after {killed:?}");
    assert!(killed >= UP_LIMIT / 2, "{what}: one slow answer is no hang: {killed:?}");
    starts[victim] += 1;
    let name = trio.tenants[victim].record.name.clone();
    trio.tenants[victim] = trio.up.ready_again(&name, starts[victim]).await;
    are_hangs_reported(&trio.tenants[victim], starts[victim], UP_LIMIT / 2).await;
    for (index, load) in loads.into_iter().enumerate() {
        let answers = three_tenants::ended(load).await;
        let cut = answers.iter().filter(|answer| answer.is_err()).count();
        assert!(index == victim || cut == 0, "{what}: {cut} answers of a peer were cut");
        let pairs = answers.into_iter().zip(&baseline[index]).filter(|(answer, _)| answer.is_ok());
        let (answers, expected): (Vec<_>, Vec<_>) =
            pairs.map(|(came, expected)| (came, expected.clone())).unzip();
        same(index, answers, &expected);
    }
    trio.are_all_loans_returned(RETURN_AFTER_CRASHES).await;
}

async fn stopped_in_states(states: &[When]) {
    let world = TestEnv::new();
    let binaries = world.special_binaries(SLOWED);
    let mut trio = ThreeTenants::start_of(&binaries, &world, "Oneiros").await;
    let baseline: Vec<_> = trio.baseline().await.into_iter().map(|(answers, _)| answers).collect();
    let mut starts = [1; 3];
    for when in states {
        stopped_as_a_whole(&mut trio, &baseline, *when, &mut starts).await;
    }
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_tenant_is_replaced_and_its_memory_returns() {
    stopped_in_states(&[When::Borrowing]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "cargo xtask nightly: two minutes"]
async fn tenant_that_stops_in_any_other_state_is_replaced() {
    stopped_in_states(&[When::Computing, When::Lending, When::Remapping]).await;
}

//! Tenants that share a GPU: memory moves to the tenant that needs it and is returned, also when processes crash,
//! and no token changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sluice_wire::State;
use sluice_wire::state::{GpuState, TenantReport};

use crate::support::http::CLIENT;
use crate::support::tenant::{greedy, prompt};
use crate::support::three_tenants::{
    self, RETURN_AFTER_CRASHES, ThreeTenants, events, is_loaded, reported_events, same, tenant_index,
};
use crate::support::{Tenant, TestEnv, processes};

/// Limit after the last request for the return of all loans.
const HOME: Duration = Duration::from_secs(20);
/// Time for which each new engine is killed: the restart delay grows to its maximum, five seconds.
const FAULT_LIMIT: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn three_tenants_trade_and_no_token_changes() {
    let world = TestEnv::new();
    let trio = ThreeTenants::start(&world, "Oneiros").await;
    let baseline = trio.baseline().await;
    for (index, (_, seen)) in baseline.iter().enumerate() {
        assert!(seen.most_borrowed[index] > 0, "tenant {index} alone had to borrow: {seen:?}");
        assert!(seen.most_lent.iter().sum::<u64>() > 0, "a tenant has lent it: {seen:?}");
    }
    let (together, seen) = trio.watched(&[0, 1, 2]).await;
    for (index, answers) in together.into_iter().enumerate() {
        same(index, answers, &baseline[index].0);
    }
    eprintln!("all at once: {seen:?}");
    trio.are_all_loans_returned(HOME).await;
    let states = trio.states().await;
    assert!(states.iter().all(|state| events(state, "borrow") > 0), "{:?}", reported_events(&states));
    assert!(states.iter().any(|state| events(state, "lend") > 0), "{:?}", reported_events(&states));
    for state in &states {
        let place = tenant_index(state);
        let slice = place.time_slice.as_ref().expect("the GPU has time slices");
        for (what, times) in [("grant", &place.grant), ("wait", &slice.wait), ("hand-over", &slice.handover)]
        {
            let timed = (times.samples > 0, times.p50_ns > 0, times.p99_ns > 0);
            assert!(
                timed == (true, true, true) || timed == (false, false, false),
                "{what}: {:?}",
                reported_events(&states)
            );
            assert!(times.p50_ns <= times.p99_ns, "{what}: {:?}", reported_events(&states));
        }
        assert!(slice.wait.samples > 0 && slice.handover.samples > 0, "{:?}", reported_events(&states));
    }
    // A search that ended by another reclaim option is not counted, so not every tenant need have one.
    let measured = |of: fn(&State) -> u64| states.iter().map(of).sum::<u64>();
    assert!(measured(|s| tenant_index(s).grant.samples) > 0, "{:?}", reported_events(&states));
    assert!(measured(|s| tenant_index(s).revoke.samples) > 0, "{:?}", reported_events(&states));
    assert!(measured(|s| tenant_index(s).wake.samples) > 0, "{:?}", reported_events(&states));
    assert_eq!(world.stdout().lines().count(), 3, "no sidecar was restarted: {}", world.stderr());
    are_all_listed(&trio.tenants[0]).await;
    trio.up.end_cleanly().await;
}

/// Minimum idle time of a tenant between its requests.
const IDLE: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn tenant_reports_expected_next_request() {
    let world = TestEnv::new();
    let trio = ThreeTenants::start(&world, "Unified").await;
    let expected = |state: &State| state.activity.next_use_in_ms;
    let began = Instant::now();
    for used in 0..4 {
        tokio::time::sleep(IDLE).await;
        assert_eq!(trio.states().await.each_ref().map(expected), [None; 3], "after {used} requests");
        trio.tenants[0].complete(&greedy(&prompt(used, 20), 2)).await.unwrap();
    }
    trio.tenants[0].until("three requests have found it idle", |state| expected(state).is_some()).await;
    let [first, second, third] = trio.states().await.each_ref().map(expected);
    assert_eq!((second, third), (None, None));
    let first = Duration::from_millis(first.unwrap());
    assert!(first > Duration::ZERO, "{first:?}");
    // Longer than any idle period so far.
    tokio::time::sleep(began.elapsed()).await;
    let later = Duration::from_millis(expected(&trio.states().await[0]).unwrap());
    assert!(later >= 4 * IDLE, "as long again as it was idle: {later:?} after {first:?}");
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_and_a_sidecar_killed_while_memory_is_lent() {
    let world = TestEnv::new();
    let mut trio = ThreeTenants::start(&world, "Oneiros").await;
    let baseline = trio.baseline().await;
    let (mut loads, lender, state) =
        trio.find_loaded_tenant("lends", |state| tenant_index(state).lent_bytes > 0).await;
    processes::signal(state.engine.pid.unwrap(), Signal::KILL);
    let lost = |state: &State| state.engine.restarts > 0 && state.engine.pid.is_some();
    trio.tenants[lender].until("its engine is replaced", lost).await;
    let is_peer_with_grant = |index: usize, state: &State| {
        index != lender
            && is_loaded(state)
            && tenant_index(state).lent_bytes + tenant_index(state).borrowed_bytes > 0
    };
    let (victim, _) = trio.find_in_loads(&mut loads, "a peer has a grant", is_peer_with_grant).await;
    processes::signal(trio.tenants[victim].record.pid, Signal::KILL);

    for (index, load) in loads.into_iter().enumerate() {
        let mut answers = three_tenants::ended(load).await;
        if index == victim {
            assert!(answers.iter().any(Result::is_err), "it was killed in the middle of its load");
        }
        let expected = baseline[index].0.iter().zip(&answers).filter(|(_, a)| index != victim || a.is_ok());
        let expected: Vec<_> = expected.map(|(expected, _)| expected.clone()).collect();
        answers.retain(|answer| index != victim || answer.is_ok());
        same(index, answers, &expected);
    }
    let name = trio.tenants[victim].record.name.clone();
    trio.tenants[victim] = trio.up.ready_again(&name, 2).await;
    let (again, _) = trio.watched(&[victim]).await;
    for answers in again {
        same(victim, answers, &baseline[victim].0);
    }
    trio.are_all_loans_returned(RETURN_AFTER_CRASHES).await;
    are_all_listed(&trio.tenants[victim]).await;
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_of_crash_looping_engine_continue_and_loans_return() {
    let world = TestEnv::new();
    let trio = ThreeTenants::start(&world, "Oneiros").await;
    let [victim, one, other] = &trio.tenants;
    // They wait for the time slice whenever there is an engine.
    let held = three_tenants::begin(victim);
    let on = AtomicBool::new(true);
    let trouble = async {
        let kills = kill_engines(victim).await;
        on.store(false, Ordering::Relaxed);
        kills
    };
    let ((kills, absence), one, other) =
        tokio::join!(trouble, longest_silence(one, &on), longest_silence(other, &on));
    assert!(kills > 6, "{kills} engines killed");
    eprintln!(
        "{kills} engines killed, away for {absence:?}; the longest silences of the others: {one:?}, {other:?}"
    );
    // A tenant that waits for the missing engine would be silent for that long. Both are longer on a busy machine.
    assert!(
        one.max(other) < absence,
        "{one:?}, {other:?}, {absence:?}, {:#?}",
        reported_events(&trio.states().await)
    );
    three_tenants::ended(held).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    trio.are_all_loans_returned(RETURN_AFTER_CRASHES).await;
    trio.up.end_cleanly().await;
}

/// Kills every engine of the tenant as soon as it serves. Returns their number, and the longest time without one.
async fn kill_engines(tenant: &Tenant) -> (u32, Duration) {
    let (begun, mut last, mut kills) = (Instant::now(), None, 0);
    let (mut since, mut longest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < FAULT_LIMIT {
        let pid = tenant.state().await.engine.pid;
        if let Some(running) = pid.filter(|_| pid != last) {
            longest = longest.max(since.elapsed());
            processes::signal(running, Signal::KILL);
            (last, kills, since) = (pid, kills + 1, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (kills, longest)
}

/// Sends the tenant one request after another while `on`. Returns the longest time between two tokens.
async fn longest_silence(tenant: &Tenant, on: &AtomicBool) -> Duration {
    let (mut longest, mut spoke) = (Duration::ZERO, Instant::now());
    for seed in (0..).take_while(|_| on.load(Ordering::Relaxed)) {
        let mut stream = tenant.stream(&greedy(&prompt(seed, 100), 48)).await;
        while stream.next().await.unwrap() {
            longest = longest.max(spoke.elapsed());
            spoke = Instant::now();
        }
    }
    longest
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_partitions_lend_nothing_and_borrow_nothing() {
    let world = TestEnv::new();
    let trio = ThreeTenants::start(&world, "Recompute").await;
    let (_, seen) = trio.watched(&[0, 1]).await;
    assert_eq!((seen.most_lent, seen.most_borrowed), ([0; 3], [0; 3]));
    assert!(seen.polls > 20, "{seen:?}");
    for state in trio.states().await {
        let place = tenant_index(&state);
        assert_eq!(["lend", "borrow"].map(|reason| events(&state, reason)), [0, 0]);
        assert_eq!((place.budget_bytes, place.lendable_bytes), (place.share_bytes, 0));
    }
    let preempted = trio.tenants[0].state().await.figures.preemptions_total;
    assert!(preempted > 0, "there was need: with a peer's memory no request would have been preempted");
    trio.up.end_cleanly().await;
}

/// Checks that one admin port reports all tenants of the GPU.
async fn are_all_listed(tenant: &Tenant) {
    let token = std::fs::read_to_string(&tenant.record.token_file).unwrap();
    let url = format!("http://{}/v1/state?scope=gpu", tenant.record.admin);
    let text = CLIENT.get(url).bearer_auth(token).send().await.unwrap().bytes().await.unwrap();
    let mut names: Vec<_> = GpuState::from_json(&text)
        .unwrap()
        .tenants
        .into_iter()
        .map(|report| match report {
            TenantReport::State(state) => state.tenant.name,
            TenantReport::Unreachable { name, reason, .. } => panic!("{name}: {reason}"),
        })
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["alpha", "beta", "gamma"]);
}

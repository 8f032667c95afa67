//! Engines that crash repeatedly, or hang: the same streams continue with the same tokens.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sluice_common::metrics_text::sum;

use crate::support::{Tenant, TestEnv, WAIT_LIMIT, eventually, http, processes, slow};

/// A silence longer than any step.
const SILENCE: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread")]
async fn when_the_engine_is_killed_the_same_streams_go_on_with_the_same_tokens() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 1, 40).await;
    let (other, other_expected) = slow::undisturbed(&tenant, 2, 30).await;
    let mut stream = tenant.stream(&body).await;
    let whole = tokio::spawn({
        let tenant = tenant.clone();
        async move { tenant.complete(&other).await }
    });
    stream.until_tokens(10).await;
    let both = tenant.until("both requests run", |state| state.queue.running == 2).await;
    let first = both.engine.pid.unwrap();
    processes::signal(first, Signal::KILL);
    let other_than =
        |first: u32| move |state: &sluice_wire::State| state.engine.pid.is_some_and(|pid| pid != first);
    let state = tenant.until("the successor is attached", other_than(first)).await;
    assert!(state.engine.attempt > both.engine.attempt);
    assert_eq!(state.engine.restarts, both.engine.restarts + 1);
    assert_eq!(stream.finish().await.unwrap(), expected);
    assert_eq!(whole.await.unwrap().unwrap(), other_expected);
    assert_eq!(world.stdout().lines().count(), 1, "no line was printed about it");
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_engine_is_killed_ten_times_in_a_minute_the_tenant_stays_ready_and_the_stream_ends_whole() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 3, 60).await;
    let mut stream = tenant.stream(&body).await;
    let begun = Instant::now();
    for kill in 1..=10 {
        stream.until_tokens(kill * 4).await;
        processes::signal(tenant.engine().await, Signal::KILL);
        assert_eq!(tenant.readiness().await, Some(200), "after kill {kill}");
        // Until then the state names the dead engine.
        tenant.until("the loss is noticed", |state| state.engine.restarts == kill as u64).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "ten in a minute: {:?}", begun.elapsed());
    assert_eq!(stream.finish().await.unwrap(), expected);
    assert_eq!(tenant.complete(&body).await.unwrap(), expected, "and so does the next one");
    assert_eq!(tenant.state().await.engine.restarts, 10);
    assert!(processes::alive(tenant.record.pid), "the sidecar was never restarted");
    assert_eq!(world.stdout().lines().count(), 1);
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_supervisor_does_not_interrupt_stream() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 4, 30).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(5).await;
    let engine = tenant.engine().await;
    processes::signal(processes::parent(engine), Signal::KILL);
    assert_eq!(stream.finish().await.unwrap(), expected);
    tenant
        .until("another engine is attached", |state| state.engine.pid.is_some_and(|pid| pid != engine))
        .await;
    assert!(!processes::alive(engine), "the old engine went with its supervisor");
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_engine_pauses_streams_until_continued() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 5, 30).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(5).await;
    let engine = tenant.engine().await;
    processes::signal(engine, Signal::STOP);
    let begun = Instant::now();
    while stream.responds_within(SILENCE).await {
        assert!(begun.elapsed() < WAIT_LIMIT, "a stopped engine goes on");
    }
    assert!(stream.answer.tokens.len() < expected.tokens.len(), "it was stopped in the middle");
    assert_eq!(tenant.readiness().await, Some(200), "requests are held, not refused");
    processes::signal(engine, Signal::CONT);
    assert_eq!(stream.finish().await.unwrap(), expected);
    assert_eq!(serving_engine(&tenant).await, engine, "the engine was not replaced");
    up.end_cleanly().await;
}

/// Objectives that steps of 40 ms meet, and that a stopped engine misses long before it counts as hung and is replaced.
const SLO: &str = "slo: {ttftMilliseconds: 2000, tbtMilliseconds: 300}";
/// The TBT objective plus a tenth, and time for a poll of the state on a busy machine.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn stopped_engine_counts_slo_misses() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, SLO).await;
    let (body, expected) = slow::undisturbed(&tenant, 6, 40).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(5).await;
    let engine = tenant.engine().await;
    processes::signal(engine, Signal::STOP);
    let stopped = Instant::now();
    let missed = tenant.until("the next token is overdue", |state| state.slo.tbt_overdue == 1).await;
    assert!(stopped.elapsed() < SEEN_WITHIN, "{:?}", stopped.elapsed());
    assert!(missed.slo.tbt_attained_permille.is_some_and(|share| share < 1000), "{:?}", missed.slo);
    let text = http::CLIENT.get(tenant.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let labels = [("model_name", "slow"), ("objective", "tbt")];
    assert_eq!(sum(&text, "sluice_overdue_tokens", &labels), Some(1.0), "{text}");

    processes::signal(engine, Signal::CONT);
    assert_eq!(stream.finish().await.unwrap(), expected);
    let after = tenant.state().await;
    assert_eq!((after.slo.tbt_overdue, after.slo.ttft_overdue), (0, 0));
    assert!(after.slo.tbt_attained_permille.is_some_and(|share| share < 1000), "{:?}", after.slo);
    up.end_cleanly().await;
}

async fn serving_engine(tenant: &Tenant) -> u32 {
    eventually("an engine", async || tenant.try_state().await?.engine.pid).await
}

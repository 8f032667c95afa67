//! A sidecar is killed: its streams end, its engine ends, and both are restarted.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::wait::within;
use crate::support::{TestEnv, WAIT_LIMIT, eventually, processes, slow};

/// The design's limit for the engine's end is 100 ms. What fails is ten times that, so that a busy machine fails
/// nothing; the time itself is printed.
const ENGINE_END: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sidecar_ends_its_streams_and_its_engine_and_is_restarted() {
    let world = TestEnv::new();
    let (mut up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 1, 60).await;
    let mut stream = tenant.stream(&body).await;
    let whole = tokio::spawn({
        let (tenant, body) = (tenant.clone(), body.clone());
        async move { tenant.complete(&body).await }
    });
    stream.until_tokens(5).await;
    let engine = tenant.until("both run", |state| state.queue.running == 2).await.engine.pid.unwrap();
    let supervisor = processes::parent(engine);
    processes::signal(tenant.record.pid, Signal::KILL);
    let killed = Instant::now();
    within(ENGINE_END, "the engine ends", async || (!processes::alive(engine)).then_some(())).await;
    eprintln!("the engine ended within {:?} of its sidecar", killed.elapsed());
    let ended = tokio::time::timeout(WAIT_LIMIT, stream.finish()).await;
    assert!(ended.expect("the stream does not hang").is_err(), "what was cut must not look whole");
    assert!(whole.await.unwrap().is_err(), "what was cut must not look whole");

    let again = up.ready_again("slow", 2).await;
    assert_ne!(again.record.pid, tenant.record.pid);
    let gone = async || (!processes::alive(supervisor)).then_some(());
    eventually("the engine's supervisor goes with its sidecar", gone).await;
    assert_eq!(again.complete(&body).await.unwrap(), expected);
    let ours = [up.pid(), again.record.pid, again.engine().await];
    let others: Vec<_> = world.processes().into_iter().filter(|pid| !ours.contains(pid)).collect();
    assert_eq!(others.len(), 1, "one supervisor and no other process: {others:?}");
    assert!(world.stderr().contains("default/slow: the sidecar ended (signal: 9"), "{}", world.stderr());
    up.end_cleanly().await;
}

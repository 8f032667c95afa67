//! A tenant ends with open streams: they may finish within a time limit.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sluice_client::RequestError;
use tokio::net::TcpStream;

use crate::support::tenant::{greedy, prompt};
use crate::support::{TestEnv, eventually, slow};

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_are_finished_and_new_ones_are_refused_after_sigterm() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "drainSeconds: 30").await;
    let (body, expected) = slow::undisturbed(&tenant, 1, 120).await;
    let mut stream = tenant.stream(&body).await;
    let whole = tokio::spawn({
        let (tenant, body) = (tenant.clone(), body.clone());
        async move { tenant.complete(&body).await }
    });
    stream.until_tokens(3).await;
    tenant.until("both run", |state| state.queue.running == 2).await;
    up.signal(Signal::TERM);
    eventually("new connections are refused", async || TcpStream::connect(&tenant.address).await.err()).await;
    let before = stream.answer.tokens.len();
    assert_eq!(stream.finish().await.unwrap(), expected);
    assert!(before < expected.tokens.len(), "it was open when the tenant was ordered to end");
    assert_eq!(whole.await.unwrap().unwrap(), expected);
    let outcome = up.ended().await;
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    world.assert_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_while_streams_drain_does_not_cut_them() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "drainSeconds: 30").await;
    let (body, expected) = slow::undisturbed(&tenant, 2, 120).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(3).await;
    let engine = tenant.engine().await;
    up.signal(Signal::TERM);
    eventually("new connections are refused", async || TcpStream::connect(&tenant.address).await.err()).await;
    crate::support::processes::signal(engine, Signal::KILL);
    assert_eq!(stream.finish().await.unwrap(), expected);
    assert_eq!(up.ended().await.code, Some(0));
    world.assert_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_drain_timeout_are_cut() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "drainSeconds: 1").await;
    // At least 24 s of steps.
    let mut stream = tenant.stream(&greedy(&prompt(1, 24), 800)).await;
    stream.until_tokens(2).await;
    let begun = Instant::now();
    up.signal(Signal::TERM);
    match stream.finish().await {
        Err(RequestError::Failed(event)) => {
            assert_eq!(event["error"]["type"], "service_unavailable", "{event}")
        }
        other => panic!("what was cut must say so, not {other:?}"),
    }
    assert!(begun.elapsed() > Duration::from_millis(900), "it had its time: {:?}", begun.elapsed());
    let outcome = up.ended().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        !outcome.stderr.contains("did not end within"),
        "no process had to be killed: {}",
        outcome.stderr
    );
    world.assert_no_leftovers().await;
}

//! Tests of clients that disconnect and of a server that shuts down.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_agent::gateway::serve::{CLOSE_GRACE, drain};
use sluice_agent::scheduler_handle::Status;
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::Finish;

use super::client::TIMEOUT;
use super::harness::{Harness, HarnessConfig};

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_before_first_token_cancels_request() {
    for stream in [true, false] {
        let world = Harness::start(HarnessConfig::default()).await;
        let client =
            world.start_post("/v1/completions", &json!({"prompt": "p", "stream": stream, "n": 2})).await;
        let (one, two) = (world.scheduler.recv_request().await, world.scheduler.recv_request().await);
        assert_eq!(world.scheduler.cancelled(Duration::from_millis(100)).await, None, "it is still there");
        drop(client);
        let mut gone = [world.scheduler.cancelled(TIMEOUT).await, world.scheduler.cancelled(TIMEOUT).await];
        gone.sort();
        assert_eq!(gone, [Some(one.request.id), Some(two.request.id)], "stream: {stream}");
        assert_eq!(world.metrics.streams().open, 0);
        assert!(world.metrics.encode().contains("finished_reason=\"abort\"} 2"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_mid_stream_cancels_request() {
    for stream in [true, false] {
        let pacing = Pacing::Paced { interval_ns: 3_600_000_000_000 };
        let world = Harness::start(HarnessConfig { pacing, ..HarnessConfig::default() }).await;
        let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        let taken = world.scheduler.recv_request().await;
        taken.send_text("abc");
        if stream {
            client.head().await;
            client.next_event().await;
            // The first token may be written before the others have arrived.
            world.wait_for_deposit(2).await;
        }
        assert_eq!(world.scheduler.cancelled(Duration::from_millis(100)).await, None, "it is still there");
        drop(client);
        assert_eq!(world.scheduler.cancelled(TIMEOUT).await, Some(taken.request.id), "stream: {stream}");
        assert_eq!(world.metrics.streams().deposit_tokens, 0, "tokens that no client reads are no deposit");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_while_held_frees_permit() {
    let world = Harness::start(HarnessConfig { status: Status::Loading, ..HarnessConfig::default() }).await;
    let client = world.start_post("/v1/completions", &json!({"prompt": "p"})).await;
    let until = Instant::now() + TIMEOUT;
    let open = async |wanted: u32| {
        while world.metrics.streams().open != wanted {
            assert!(Instant::now() < until, "{:?}", world.metrics.streams());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    open(1).await;
    drop(client);
    open(0).await;
    world.status.send(Status::Serving).unwrap();
    assert!(world.scheduler.next(Duration::from_millis(100)).await.is_none(), "no client wants it any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_server_drains_open_streams() {
    let world = Harness::start(HarnessConfig::default()).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("a");
    assert_eq!(client.head().await.status, 200);
    let mut idle = world.client().await;
    idle.send("GET", "/health", &[], b"").await;
    assert_eq!(idle.answer().await.head.status, 200);
    world.stop.send(true).unwrap();
    assert!(idle.closes_within(TIMEOUT).await, "an idle connection is closed");
    let until = Instant::now() + TIMEOUT;
    while tokio::net::TcpStream::connect(world.address).await.is_ok() {
        assert!(Instant::now() < until, "a server still listens");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    taken.send_text("b");
    taken.finish(Finish::Length);
    let events = client.events().await;
    assert_eq!(events.last().map(|(_, e)| e.as_str()), Some("[DONE]"));
    tokio::time::timeout(Duration::from_secs(5), world.serving)
        .await
        .expect("it ends with its last stream")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_cut_after_drain_reports_reason() {
    let (limit, pacing) = (Duration::from_millis(200), Pacing::Paced { interval_ns: 3_600_000_000_000 });
    let world =
        Harness::start(HarnessConfig { drain: limit + CLOSE_GRACE, pacing, ..HarnessConfig::default() })
            .await;
    let mut stream = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let streamed = world.scheduler.recv_request().await;
    streamed.send_text("ab");
    let mut whole = world.start_post("/v1/completions", &json!({"prompt": "p"})).await;
    let collected = world.scheduler.recv_request().await;
    collected.send_text("a");
    assert_eq!(stream.head().await.status, 200);
    stream.next_event().await;
    world.wait_for_deposit(1).await;
    let stopped_at = Instant::now();
    world.stop.send(true).unwrap();
    drain(world.serving, limit, || {
        assert!(stopped_at.elapsed() >= limit);
        streamed.finish(Finish::Cancelled);
        // A scheduler that has exited sends nothing.
        drop(collected);
    })
    .await;
    let events: Vec<_> = stream.events().await.into_iter().map(|(_, event)| event).collect();
    let [token, error, done] = events.as_slice() else { panic!("{events:?}") };
    assert!(token.contains("\"text\":\"b\""), "what the deposit held is not lost: {token}");
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["type"], "service_unavailable", "{error}");
    assert_eq!(done, "[DONE]");
    whole.answer().await.error(503, "service_unavailable", None, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_at_once_without_open_answers() {
    let limit = Duration::from_secs(3600);
    let world = Harness::start(HarnessConfig { drain: limit, ..HarnessConfig::default() }).await;
    world.stop.send(true).unwrap();
    let mut cut = 0;
    let finished = drain(world.serving, limit, || cut += 1);
    tokio::time::timeout(TIMEOUT, finished).await.expect("it ends at once");
    assert_eq!(cut, 1, "the scheduler ends in any case");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_connection_is_cut_after_drain() {
    let limit = Duration::from_millis(300);
    let world = Harness::start(HarnessConfig { drain: limit, ..HarnessConfig::default() }).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("a");
    assert_eq!(client.head().await.status, 200);
    client.next_event().await;
    let stopped_at = Instant::now();
    world.stop.send(true).unwrap();
    assert!(client.event().await.is_err(), "cut, not ended");
    assert!(stopped_at.elapsed() >= limit && stopped_at.elapsed() < limit * 10);
    assert_eq!(world.scheduler.cancelled(TIMEOUT).await, Some(taken.request.id));
    world.serving.await.unwrap();
}

//! Tests of the listener for probes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use sluice_agent::gateway::serve::{ListenerLimits, serve};
use sluice_agent::heartbeat::Heartbeat;
use sluice_agent::probes::{self, DrainHook};
use sluice_agent::scheduler_handle::Status;
use sluice_scheduler::Finish;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::client::{Answer, Client, TIMEOUT};
use super::harness::{Harness, HarnessConfig};

async fn open(router: axum::Router) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopping) = watch::channel(false);
    tokio::spawn(serve(
        listener,
        router,
        ListenerLimits { max_connections: 8, drain_timeout: Duration::from_secs(1) },
        stopping,
    ));
    (address, stop)
}

async fn get(address: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(address).await;
    client.send("GET", path, &[], b"").await;
    client.answer().await
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_report_startup_and_readiness() {
    let mut world =
        Harness::start(HarnessConfig { status: Status::Loading, ..HarnessConfig::default() }).await;
    world.answer_all("");
    let (address, _stop) = open(probes::router(world.scrape(), None, Heartbeat::default())).await;
    let failed = Status::Failed("bad weights".into());
    for (status, startup, ready) in [
        (Status::Loading, 200, 503),
        (Status::Serving, 200, 200),
        (Status::EngineLost, 200, 200),
        (failed, 503, 503),
    ] {
        world.status.send(status.clone()).unwrap();
        for (path, wanted) in [("/startup", startup), ("/ready", ready), ("/live", 200)] {
            assert_eq!(get(address, path).await.head.status, wanted, "{path} while {status:?}");
        }
        assert_eq!(world.get("/ready").await.head.status, ready);
    }
    let metrics = get(address, "/metrics").await;
    assert!(metrics.body.contains("vllm:num_requests_running{model_name=\"tiny\"} 0\n"), "{}", metrics.body);
    for path in ["/", "/v1/state", "/v1/models", "/v1/completions", "/drain"] {
        assert_eq!(get(address, path).await.head.status, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_scheduler_fails_liveness() {
    let world = Harness::start(HarnessConfig::default()).await;
    let asked = async |heartbeat: &Heartbeat| {
        let (address, _stop) = open(probes::router(world.scrape(), None, heartbeat.clone())).await;
        let answer = get(address, "/live").await;
        (answer.head.status, answer.body)
    };
    let (goes_round, stands_still) = (Heartbeat::default(), Heartbeat::new(Duration::ZERO));
    let live = (200, "live\n".to_owned());
    assert_eq!(asked(&stands_still).await, live, "it has not begun: the tenant loads");
    goes_round.beat();
    stands_still.beat();
    assert_eq!(asked(&goes_round).await, live);
    let (status, words) = asked(&stands_still).await;
    assert_eq!(status, 503);
    assert!(words.starts_with("the scheduler's thread has made no progress for "), "{words}");
}

/// Returns a drain hook that completes as soon as no request is open.
fn hook(world: &Harness, limit: Duration) -> Option<DrainHook> {
    Some(DrainHook::new(world.open.clone(), limit, Duration::ZERO, None))
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_readiness_and_waits_for_requests() {
    let world = Harness::start(HarnessConfig::default()).await;
    let hook = hook(&world, Duration::from_secs(60));
    let (address, _stop) = open(probes::router(world.scrape(), hook.clone(), Heartbeat::default())).await;
    let hook = hook.unwrap();
    let mut over = tokio::spawn(async move { hook.wait_drained().await });
    let mut early =
        world.start_post("/v1/completions", &json!({"prompt": "a", "stream": true, "max_tokens": 2})).await;
    let open_stream = world.scheduler.recv_request().await;
    assert_eq!(get(address, "/ready").await.head.status, 200);
    let mut waiting = Client::connect(address).await;
    waiting.send("GET", "/drain", &[], b"").await;
    let until = Instant::now() + TIMEOUT;
    while get(address, "/ready").await.head.status == 200 {
        assert!(Instant::now() < until, "it is still ready");
    }
    // A client that has not noticed the drain yet is still served.
    let mut late = world.start_post("/v1/completions", &json!({"prompt": "b", "max_tokens": 1})).await;
    let also_open = world.scheduler.recv_request().await;
    also_open.finish(Finish::Length);
    assert_eq!(late.answer().await.head.status, 200);
    let answered = tokio::time::timeout(Duration::from_millis(300), waiting.answer()).await;
    assert!(answered.is_err(), "a stream is open");
    assert!(!over.is_finished(), "and the process is needed");
    open_stream.finish(Finish::Length);
    assert_eq!(early.answer().await.head.status, 200);
    let mut second = Client::connect(address).await;
    second.send("GET", "/drain", &[], b"").await;
    assert_eq!(second.answer().await.body, "drained\n");
    tokio::time::timeout(TIMEOUT, &mut over).await.expect("all hooks are answered").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_requires_hook_key() {
    let world = Harness::start(HarnessConfig::default()).await;
    let hook = DrainHook::new(world.open.clone(), TIMEOUT, Duration::ZERO, Some("a key".into()));
    let (address, _stop) = open(probes::router(world.scrape(), Some(hook), Heartbeat::default())).await;
    let asked = async |headers: &[(&str, &str)]| {
        let mut client = Client::connect(address).await;
        client.send("GET", "/drain", headers, b"").await;
        client.answer().await
    };
    for headers in [&[][..], &[("x-sluice-drain", "another")], &[("x-sluice-drain", "")]] {
        let refused = asked(headers).await;
        assert_eq!(refused.head.status, 403, "{headers:?}");
        assert_eq!(refused.body, "the header x-sluice-drain has the wrong value\n");
        assert_eq!(get(address, "/ready").await.head.status, 200, "no handler was called");
    }
    assert_eq!(asked(&[("X-Sluice-Drain", "a key")]).await.body, "drained\n");
    assert_eq!(get(address, "/ready").await.head.status, 503);
}

/// The kubelet also runs the hook when it restarts an engine's container.
#[tokio::test(flavor = "multi_thread")]
async fn engine_hook_waits_for_drain() {
    let world = Harness::start(HarnessConfig::default()).await;
    let hook = DrainHook::new(world.open.clone(), TIMEOUT, Duration::ZERO, Some("a key".into()));
    let router = probes::router(world.scrape(), Some(hook.clone()), Heartbeat::default());
    let (address, _stop) = open(router).await;
    let asks = async |path: &str, key: &str| {
        let mut client = Client::connect(address).await;
        client.send("GET", path, &[("x-sluice-drain", key)], b"").await;
        client
    };
    assert_eq!(asks("/drained", "another").await.answer().await.head.status, 403);
    assert_eq!(asks("/drained", "a key").await.answer().await.body, "this sidecar does not drain\n");
    assert_eq!(get(address, "/ready").await.head.status, 200);
    assert!(!hook.answered(), "the sidecar goes on");
    let mut stream = world.start_post("/v1/completions", &json!({"prompt": "a", "stream": true})).await;
    let open_stream = world.scheduler.recv_request().await;
    let mut engine = asks("/drained", "a key").await;
    let mut sidecar = asks("/drain", "a key").await;
    for one in [&mut engine, &mut sidecar] {
        let answered = tokio::time::timeout(Duration::from_millis(300), one.answer()).await;
        assert!(answered.is_err(), "a stream is open");
    }
    open_stream.finish(Finish::Length);
    assert_eq!(stream.answer().await.head.status, 200);
    for one in [&mut engine, &mut sidecar] {
        assert_eq!(one.answer().await.body, "drained\n");
    }
    tokio::time::timeout(TIMEOUT, hook.wait_drained()).await.expect("both are answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_times_out() {
    let world = Harness::start(HarnessConfig::default()).await;
    let hook = hook(&world, Duration::from_millis(200));
    let (address, _stop) = open(probes::router(world.scrape(), hook, Heartbeat::default())).await;
    let _stream = world.start_post("/v1/completions", &json!({"prompt": "a", "stream": true})).await;
    let _taken = world.scheduler.recv_request().await;
    assert_eq!(get(address, "/drain").await.body, "1 requests are still open\n");
}

//! Tests of malicious clients: their use is bounded, they get an error, and no other stream is affected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_agent::gateway::limits::RequestLimiter;
use sluice_agent::gateway::timeouts::Timeouts;
use sluice_agent::metrics::Metrics;
use sluice_agent::scheduler_handle::RequestUpdate;
use sluice_ports::sampling::TokenLogprobs;
use sluice_scheduler::Finish;
use sluice_wire::config::{LimitsConfig, SloConfig};

use super::client::{Client, TIMEOUT};
use super::harness::{Harness, HarnessConfig, ReceivedRequest};

const INVALID: &str = "invalid_request_error";
const JSON: (&str, &str) = ("content-type", "application/json");

async fn small() -> Harness {
    let limits = LimitsConfig { max_body_bytes: 1000, ..LimitsConfig::default() };
    Harness::start(HarnessConfig { limits, ..HarnessConfig::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_body_is_413_with_or_without_content_length() {
    let world = small().await;
    let huge = vec![b' '; 300_000];
    let mut client = world.client().await;
    client.send("POST", "/v1/completions", &[JSON], &huge).await;
    client.answer().await.error(413, INVALID, None, None);

    let mut client = world.client().await;
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    client.raw(head).await.unwrap();
    for _ in 0..30 {
        client.raw(b"100\r\n").await.unwrap();
        client.raw(&[b' '; 256]).await.unwrap();
        client.raw(b"\r\n").await.unwrap();
    }
    client.raw(b"0\r\n\r\n").await.unwrap();
    client.answer().await.error(413, INVALID, None, None);

    // A declared body that is never sent: the response does not wait for it.
    let mut client = world.client().await;
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        content-length: 99999999999\r\nexpect: 100-continue\r\n\r\n";
    client.raw(head).await.unwrap();
    client.answer().await.error(413, INVALID, None, None);
    let exact = json!({"prompt": "p", "user": "u".repeat(1000 - 24)}).to_string();
    assert_eq!(exact.len(), 1000);
    let mut client = world.client().await;
    client.send("POST", "/v1/completions", &[JSON], exact.as_bytes()).await;
    world.scheduler.recv_request().await.finish(Finish::Length);
    assert_eq!(client.answer().await.head.status, 200, "the limit itself is allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_json_is_400_with_position() {
    let world = Harness::start(HarnessConfig::default()).await;
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: [(&[u8], &str); 7] = [
        (b"{\"prompt\": \"p\",\n  oops}", "line 2 column 3"),
        (b"", "line 1 column 0"),
        (b"[1]", "line 1 column"),
        (b"\"p\"", "line 1 column"),
        (b"{\"prompt\": \"\xff\xfe\"}", "line 1 column"),
        (b"{\"prompt\": \"\\ud800\"}", "line 1 column"),
        (deep.as_bytes(), "recursion limit"),
    ];
    for (body, place) in cases {
        let mut client = world.client().await;
        client.send("POST", "/v1/completions", &[JSON], body).await;
        let message = client.answer().await.error(400, INVALID, None, None);
        assert!(message.contains(place), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_http_is_refused_and_closed() {
    let world = Harness::start(HarnessConfig::default()).await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
    ] {
        let mut client = world.client().await;
        client.raw(bytes).await.unwrap();
        assert!(client.closes_within(Duration::from_secs(5)).await, "{bytes:?}");
    }
    let mut client = world.client().await;
    let head = format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    let _ = client.raw(head.as_bytes()).await;
    assert!(client.closes_within(Duration::from_secs(5)).await, "a head has a largest size");
    assert_eq!(world.get("/health").await.head.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_header_is_cut() {
    let timeouts = Timeouts { head: Duration::from_millis(300), ..Timeouts::default() };
    let world = Harness::start(HarnessConfig { timeouts, ..HarnessConfig::default() }).await;
    // The server's timeout starts with the connection, possibly before this client continues.
    let began = Instant::now();
    let mut client = world.client().await;
    client.raw(b"GET /health HT").await.unwrap();
    assert!(client.closes_within(Duration::from_secs(5)).await);
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alive_outlasts_header_timeout() {
    let (head, idle) = (Duration::from_millis(300), Duration::from_secs(60));
    let world = Harness::start(HarnessConfig {
        timeouts: Timeouts { head, idle, ..Timeouts::default() },
        ..HarnessConfig::default()
    });
    let world = world.await;
    let mut client = world.client().await;
    for _ in 0..2 {
        client.send("GET", "/health", &[], b"").await;
        assert_eq!(client.answer().await.head.status, 200);
        tokio::time::sleep(head * 2).await;
    }
    client.raw(b"GET /health HT").await.unwrap();
    assert!(
        client.closes_within(Duration::from_secs(5)).await,
        "of a later head, too, the first byte counts"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_body_outlasts_header_timeout() {
    let timeouts = Timeouts { head: Duration::from_millis(300), ..Timeouts::default() };
    let world = Harness::start(HarnessConfig { timeouts, ..HarnessConfig::default() }).await;
    let mut client = world.client().await;
    let body = json!({"prompt": "p"}).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    client.raw(format!("{head}content-length: {}\r\n\r\n", body.len()).as_bytes()).await.unwrap();
    for byte in body.as_bytes() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.raw(&[*byte]).await.unwrap();
    }
    world.scheduler.recv_request().await.finish(Finish::Length);
    assert_eq!(client.answer().await.head.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_limit_is_503_and_slots_are_freed() {
    let world = Harness::start(HarnessConfig { connections: 2, ..HarnessConfig::default() }).await;
    let (mut one, _two) = (world.client().await, world.client().await);
    one.send("GET", "/health", &[], b"").await;
    assert_eq!(one.answer().await.head.status, 200);
    let answer = world.client().await.answer().await;
    answer.error(503, "service_unavailable", None, None);
    assert_eq!(answer.head.header("retry-after"), Some("1"));
    drop(one);
    let until = Instant::now() + TIMEOUT;
    while world.get("/health").await.head.status != 200 {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts a stream whose client has a very small buffer and reads nothing.
async fn start_unread_stream(world: &Harness) -> (Client, ReceivedRequest) {
    let mut client = Client::connect_small_buffer(world.address).await;
    let body = json!({"prompt": "p", "stream": true, "max_tokens": 9_000_000, "logprobs": 20});
    client.post("/v1/completions", &body).await;
    (client, world.scheduler.recv_request().await)
}

/// Sends fifty tokens with large events.
fn send_large_text(taken: &ReceivedRequest) {
    for _ in 0..50 {
        let logprobs = Some(TokenLogprobs { chosen: -0.5, top: (0..20).map(|i| (97 + i, -0.5)).collect() });
        taken.update(RequestUpdate::Token { token: 97, logprobs, at: Instant::now() });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_is_cut() {
    let timeouts = Timeouts { write: Duration::from_millis(500), ..Timeouts::default() };
    let world =
        Harness::start(HarnessConfig { timeouts, context: 10_000_000, ..HarnessConfig::default() }).await;
    let (slow, taken) = start_unread_stream(&world).await;
    let began = Instant::now();
    let mut cancelled = None;
    while cancelled.is_none() {
        assert!(began.elapsed() < TIMEOUT, "the slow reader was never cut");
        send_large_text(&taken);
        cancelled = world.scheduler.cancelled(Duration::from_millis(1)).await;
    }
    assert_eq!(cancelled, Some(taken.request.id));
    drop(slow);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_does_not_delay_other_streams() {
    // No connection is cut during this test. A token that waited for the slow reader would never arrive.
    let timeouts = Timeouts { write: TIMEOUT * 100, ..Timeouts::default() };
    let world =
        Harness::start(HarnessConfig { timeouts, context: 10_000_000, ..HarnessConfig::default() }).await;
    let (slow, slow_taken) = start_unread_stream(&world).await;
    let mut quick = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let quick_taken = world.scheduler.recv_request().await;
    quick_taken.send_text("a");
    assert_eq!(quick.head().await.status, 200);
    quick.next_event().await;
    // Far more than the kernel buffers.
    for _ in 0..600 {
        send_large_text(&slow_taken);
        quick_taken.send_text("b");
        quick.next_event().await;
    }
    slow_taken.finish(Finish::Length);
    quick_taken.finish(Finish::Length);
    assert_eq!(quick.events().await.last().map(|(_, e)| e.as_str()), Some("[DONE]"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.metrics.streams().open, 1, "the slow reader's answer stands still");
    drop(slow);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_prompt_does_not_delay_streams() {
    let world = Harness::start(HarnessConfig::default()).await;
    let mut quick = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("a");
    quick.head().await;
    quick.next_event().await;
    let body = json!({"prompt": "some words ".repeat(90_000)});
    let mut heavy = Vec::new();
    for _ in 0..6 {
        heavy.push(world.start_post("/v1/completions", &body).await);
    }
    for _ in 0..20 {
        taken.send_text("b");
        quick.next_event().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for mut client in heavy {
        client.answer().await.error(400, INVALID, Some("prompt"), Some("context_length_exceeded"));
    }
}

/// Parsing of the body ends only after the runtime's single worker has run another task.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn large_body_does_not_block_runtime() {
    let open = RequestLimiter::new(1, Arc::new(Metrics::new("tiny", &SloConfig::default())));
    let (others, others_ran) = std::sync::mpsc::channel();
    let (begun, parsing) = tokio::sync::oneshot::channel();
    let work = move || {
        begun.send(()).expect("the test waits");
        others_ran.recv_timeout(TIMEOUT).expect("another task runs at the same time");
        Ok(())
    };
    let parse = tokio::spawn(async move { open.parse(1 << 20, work).await });
    parsing.await.expect("it begins");
    let other = tokio::spawn(async move { others.send(()) });
    parse.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_concurrent_streams_complete() {
    const STREAMS: usize = 2000;
    let world = Harness::start(HarnessConfig::default()).await;
    let body = json!({"prompt": "p", "stream": true});
    let clients: Vec<_> = (0..STREAMS)
        .map(|_| {
            let (address, body) = (world.address, body.clone());
            tokio::spawn(async move {
                let mut client = Client::connect(address).await;
                client.post("/v1/completions", &body).await;
                assert_eq!(client.head().await.status, 200);
                let events = client.events().await;
                let text = |e: &str| {
                    serde_json::from_str::<Value>(e).ok()?["choices"][0]["text"].as_str().map(str::to_owned)
                };
                events.iter().filter_map(|(_, e)| text(e)).collect::<String>()
            })
        })
        .collect();
    let mut taken = Vec::new();
    for _ in 0..STREAMS {
        taken.push(world.scheduler.recv_request().await);
    }
    assert_eq!(world.metrics.streams().open, STREAMS as u32, "all at the same time");
    for (index, one) in taken.iter().enumerate() {
        one.send_text(&format!("{index:04}"));
        one.finish(Finish::Length);
    }
    let mut texts = Vec::new();
    for client in clients {
        texts.push(client.await.unwrap());
    }
    texts.sort();
    assert_eq!(texts, (0..STREAMS).map(|i| format!("{i:04}")).collect::<Vec<_>>());
}

//! Hostile clients together with a normal one: they must not affect it, and their resources are released.

use std::time::{Duration, Instant};

use serde_json::json;
use sluice_client::RequestError;
use sluice_e2e::files;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::support::http::Raw;
use crate::support::tenant::{greedy, prompt};
use crate::support::{Answer, Stream, Tenant, TestEnv, Up, WAIT_LIMIT, processes, slow};

/// Limit for a request head, which is 10 s; this includes time for a busy machine.
const HEAD_LIMIT: Duration = Duration::from_secs(100);
/// Temporary memory growth that hostile clients may cause, bytes.
const TOLERATED_BYTES: u64 = 100 << 20;

/// A tenant with an open stream of about 6 s.
struct HostileSetup<'a> {
    up: Up<'a>,
    tenant: Tenant,
    stream: Stream,
    expected: Answer,
    resident_bytes: u64,
}

impl<'a> HostileSetup<'a> {
    async fn start(world: &'a TestEnv) -> HostileSetup<'a> {
        let (up, tenant) = slow::start(world, "").await;
        let (body, expected) = slow::undisturbed(&tenant, 1, 150).await;
        let mut stream = tenant.stream(&body).await;
        stream.until_tokens(1).await;
        let resident_bytes = processes::resident_bytes(tenant.record.pid);
        HostileSetup { up, tenant, stream, expected, resident_bytes }
    }

    /// Checks that the normal stream was not affected, that all resources are released, and that the tenant still
    /// serves.
    async fn end(self) {
        let HostileSetup { up, tenant, stream, expected, resident_bytes } = self;
        assert_eq!(stream.finish().await.unwrap(), expected, "the other stream was affected");
        let left = |state: &sluice_wire::State| {
            state.kv.layer_blocks_used == 0 && state.queue == Default::default() && state.streams.open == 0
        };
        let state = tenant.until("all memory is given back", left).await;
        assert!(state.memory.balances());
        let grown = processes::resident_bytes(tenant.record.pid).saturating_sub(resident_bytes);
        assert!(grown < TOLERATED_BYTES, "the sidecar grew by {grown} bytes");
        assert_eq!((state.engine.restarts, tenant.readiness().await), (0, Some(200)));
        assert!(state.engine.up_since_unix_ms.is_some(), "the first engine is up, too");
        assert_eq!(tenant.complete(&greedy(&prompt(1, 24), 5)).await.unwrap().tokens, expected.tokens[..5]);
        up.end_cleanly().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_or_invalid_bodies_are_refused_and_streams_continue() {
    let world = TestEnv::new();
    let scene = HostileSetup::start(&world).await;
    let address = scene.tenant.address.clone();
    for _ in 0..5 {
        let mut client = Raw::connect(&address).await;
        client.send_raw(Raw::head("content-length: 10000000000\r\n").as_bytes()).await;
        client.send_raw(&vec![b' '; 300_000]).await;
        assert_eq!(client.status().await, Some(413));

        let mut client = Raw::connect(&address).await;
        client.send_raw(Raw::head("transfer-encoding: chunked\r\n").as_bytes()).await;
        let piece = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
        for _ in 0..80 {
            client.send_raw(&piece).await;
        }
        client.send_raw(b"0\r\n\r\n").await;
        assert_eq!(client.status().await, Some(413));
    }
    let deep = format!("{{\"prompt\": {}{}}}", "[".repeat(500_000), "]".repeat(500_000));
    let endless = json!({"prompt": vec![7; 900_000], "max_tokens": 1}).to_string();
    let bodies: [&[u8]; 8] = [
        b"",
        b"{\"prompt\": \"p\", oops}",
        b"{\"prompt\": \"\xff\xfe\xf0\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": [4294967296]}",
        b"{\"prompt\": [299, 300]}",
        deep.as_bytes(),
        endless.as_bytes(),
    ];
    for body in bodies {
        let mut client = Raw::connect(&address).await;
        client.post(body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_eq!(client.status().await, Some(400), "{shown}");
    }
    for bytes in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", &[0; 100_000]]
    {
        let mut client = Raw::connect(&address).await;
        client.send_raw(bytes).await;
        assert!(client.closes_within(WAIT_LIMIT).await, "what is no HTTP is closed");
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_headers_are_cut_and_streams_continue() {
    let world = TestEnv::new();
    let scene = HostileSetup::start(&world).await;
    let mut clients = JoinSet::new();
    for _ in 0..100 {
        let address = scene.tenant.address.clone();
        clients.spawn(async move {
            let mut client = Raw::connect(&address).await;
            client.send_raw(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
            let begun = Instant::now();
            // A byte now and then does not extend the limit.
            while !client.closes_within(Duration::from_millis(500)).await {
                client.send_raw(b"y").await;
                assert!(begun.elapsed() < HEAD_LIMIT, "a slow head is never cut");
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_disconnecting_clients_do_not_delay_streams() {
    let world = TestEnv::new();
    let scene = HostileSetup::start(&world).await;
    let mut deaf = Vec::new();
    for seed in 0..4 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        let mut client = Raw(socket.connect(scene.tenant.record.serve).await.unwrap());
        let mut body = greedy(&prompt(seed, 24), 900);
        (body["stream"], body["logprobs"], body["n"]) = (true.into(), 20.into(), 8.into());
        client.post(body.to_string().as_bytes()).await;
        let mut byte = [0];
        client.0.read_exact(&mut byte).await.unwrap();
        deaf.push(client);
    }
    scene.tenant.until("they are served", |state| state.queue.running > 4).await;
    for seed in 0..10 {
        let mut client = scene.tenant.stream(&greedy(&prompt(seed, 40), 300)).await;
        client.until_tokens(2).await;
        drop(client);
    }
    drop(deaf);
    let remaining = scene.tenant.until("those who left are gone", |state| state.queue.running <= 1);
    assert_eq!(remaining.await.queue.waiting, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_streams_are_each_completed_or_refused() {
    const STREAMS: usize = 10_000;
    let Some(()) = files::raise_open_file_limit(STREAMS) else { return };
    let world = TestEnv::new();
    let scene = HostileSetup::start(&world).await;
    let body = greedy(&prompt(9, 8), 3);
    let expected = scene.tenant.complete(&body).await.unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..STREAMS {
        let (url, body) = (scene.tenant.url("/v1/completions"), body.clone());
        clients.spawn(async move { outcome(Stream::open(&url, &body).await).await });
    }
    let (mut served, mut rejected, mut shut_out) = (0, 0, 0);
    while let Some(client) =
        tokio::time::timeout(WAIT_LIMIT, clients.join_next()).await.expect("no stream hangs")
    {
        match client.unwrap() {
            Outcome::Served(answer) => {
                assert_eq!(answer, expected);
                served += 1;
            }
            Outcome::Rejected => rejected += 1,
            Outcome::Disconnected => shut_out += 1,
        }
    }
    eprintln!("{served} streams served, {rejected} refused for now, {shut_out} without a connection");
    // The full queue is served in any case, and every connected client gets an answer.
    assert!(served >= 1024 && served + rejected >= 3072, "{served} served, {rejected} refused");
    scene.end().await;
}

/// Result of a stream.
enum Outcome {
    Served(Answer),
    /// 429 or 503, with a Retry-After.
    Rejected,
    /// Too many connections: the 503 is lost if the request is sent after the connection was closed.
    Disconnected,
}

/// Returns the result of a stream that may not have been opened.
async fn outcome(opened: Result<Stream, RequestError>) -> Outcome {
    match opened {
        Ok(stream) => Outcome::Served(stream.finish().await.expect("who is let in is answered whole")),
        Err(RequestError::Refused { status, retry_after, .. }) => {
            assert!([429, 503].contains(&status.as_u16()) && retry_after.is_some(), "{status}");
            Outcome::Rejected
        }
        Err(RequestError::Transport(_)) => Outcome::Disconnected,
        Err(event) => panic!("{event:?}"),
    }
}

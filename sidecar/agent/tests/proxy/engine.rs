//! The engine of these tests: a small OpenAI server in a process of its own. Its text is synthetic. Fields of the
//! requests make it hold, sleep or crash, and it logs its events.

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

/// Address of the engine; without it the test does nothing.
pub const ADDRESS: &str = "SLUICE_TEST_ENGINE";
/// Folder of its log and of the files that control it.
pub const FOLDER: &str = "SLUICE_TEST_ENGINE_FOLDER";
/// Whether it has a sleep mode.
pub const SLEEPS: &str = "SLUICE_TEST_ENGINE_SLEEPS";

pub const METRICS: &str = "# HELP vllm:num_requests_waiting Number of requests waiting.\n\
    # TYPE vllm:num_requests_waiting gauge\n\
    vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0.0\n\
    # TYPE vllm:generation_tokens_total counter\n\
    vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 17.0\n";

/// Fields of a request, including those that control this engine.
#[derive(Clone, Debug, Deserialize)]
struct EngineRequest {
    #[serde(default = "three")]
    tokens: u32,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Options,
    #[serde(default = "one")]
    n: u32,
    #[serde(default)]
    messages: Option<Value>,
    /// Number of tokens after which it waits for the file `release`.
    hold_after: Option<u32>,
    /// Token before which it crashes once; 0 = before its response begins.
    die_before: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Options {
    #[serde(default)]
    include_usage: bool,
}

fn three() -> u32 {
    3
}

fn one() -> u32 {
    1
}

#[derive(Clone)]
struct FakeEngine {
    folder: Arc<PathBuf>,
    asleep: Arc<AtomicBool>,
}

/// Runs the engine, if the other tests have started this process for it.
#[test]
#[ignore = "the engine of the other tests"]
fn process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let address: SocketAddr = address.parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(serve(address));
}

async fn serve(address: SocketAddr) {
    let folder = PathBuf::from(std::env::var(FOLDER).expect("a folder"));
    let engine = FakeEngine { folder: Arc::new(folder), asleep: Arc::default() };
    let mut router = Router::new()
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(|| async { format!("{METRICS}process_open_fds 9\n") }))
        .route("/v1/models", get(|| async { Json(json!({"object": "list", "data": [{"id": "m"}]})) }))
        .route("/tokenize", post(tokenize))
        .route("/v1/completions", post(respond))
        .route("/v1/chat/completions", post(respond));
    if std::env::var_os(SLEEPS).is_some() {
        router = router
            .route("/sleep", post(sleep))
            .route("/wake_up", post(wake_up))
            .route("/is_sleeping", get(is_sleeping));
    }
    let listener = tokio::net::TcpListener::bind(address).await.expect("its port is free");
    engine.record("started");
    axum::serve(listener, router.with_state(engine)).await.expect("it serves");
}

impl FakeEngine {
    fn record(&self, what: &str) {
        let diary = std::fs::OpenOptions::new().create(true).append(true).open(self.folder.join("diary"));
        writeln!(diary.expect("a diary"), "{what}").expect("a line");
    }

    /// Exits by SIGKILL, unless an engine has done so before.
    fn crash_once(&self) {
        if std::fs::File::create_new(self.folder.join("died")).is_ok() {
            self.record("dies");
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("a signal to itself");
        }
    }

    async fn wait_released(&self) {
        while !self.folder.join("release").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn sleep(State(engine): State<FakeEngine>, Query(query): Query<Value>) -> StatusCode {
    engine.record(&format!("sleep level={}", query["level"].as_str().unwrap_or("none")));
    engine.asleep.store(true, Ordering::SeqCst);
    StatusCode::OK
}

async fn wake_up(State(engine): State<FakeEngine>) -> StatusCode {
    engine.record("wake_up");
    tokio::time::sleep(Duration::from_millis(300)).await;
    engine.asleep.store(false, Ordering::SeqCst);
    StatusCode::OK
}

async fn is_sleeping(State(engine): State<FakeEngine>) -> Json<Value> {
    Json(json!({"is_sleeping": engine.asleep.load(Ordering::SeqCst)}))
}

/// Counts one token per byte.
async fn tokenize(Json(asked): Json<Value>) -> Json<Value> {
    let text = asked["prompt"].as_str().map_or_else(|| asked["messages"].to_string(), str::to_owned);
    Json(json!({"count": text.len(), "max_model_len": 4096, "tokens": []}))
}

async fn respond(State(engine): State<FakeEngine>, headers: HeaderMap, body: Bytes) -> Response {
    let names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
    engine.record(&format!("request {} headers {}", String::from_utf8_lossy(&body), names.join(",")));
    if engine.asleep.load(Ordering::SeqCst) {
        engine.record("ASKED WHILE ASLEEP");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let wanted: EngineRequest = serde_json::from_slice(&body).expect("a request of these tests");
    if wanted.die_before == Some(0) {
        engine.crash_once();
    }
    if !wanted.stream {
        return full_response(&engine, &wanted).await;
    }
    let (sender, receiver) = tokio::sync::mpsc::channel::<String>(1);
    tokio::spawn(stream_events(engine, wanted, sender));
    let events = tokio_stream::StreamExt::map(
        tokio_stream::wrappers::ReceiverStream::new(receiver),
        Ok::<_, Infallible>,
    );
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(events)).into_response()
}

async fn full_response(engine: &FakeEngine, wanted: &EngineRequest) -> Response {
    if wanted.hold_after.is_some() {
        engine.wait_released().await;
    }
    let text: String = (0..wanted.tokens).map(|token| format!(" t{token}")).collect();
    let choice = |index| json!({"index": index, "text": text, "finish_reason": "length"});
    let choices: Vec<_> = (0..wanted.n).map(choice).collect();
    let usage = usage(wanted);
    Json(json!({"id": "whole", "object": "text_completion", "choices": choices, "usage": usage}))
        .into_response()
}

fn usage(wanted: &EngineRequest) -> Value {
    let completion = wanted.tokens * wanted.n;
    json!({"prompt_tokens": 5, "completion_tokens": completion, "total_tokens": 5 + completion})
}

/// Writes a stream until its reader disconnects.
async fn stream_events(engine: FakeEngine, wanted: EngineRequest, sender: tokio::sync::mpsc::Sender<String>) {
    for event in events(&wanted) {
        if event.token.is_some() && event.token == wanted.die_before {
            // Lets the earlier events reach the client.
            tokio::time::sleep(Duration::from_millis(100)).await;
            engine.crash_once();
        }
        let held = wanted.hold_after.is_some() && event.held;
        tokio::select! {
            () = sender.closed() => return engine.record("gone"),
            () = async { if held { engine.wait_released().await } } => {}
        }
        if sender.send(event.text).await.is_err() {
            return engine.record("gone");
        }
    }
    engine.record("written");
}

struct Event {
    text: String,
    token: Option<u32>,
    held: bool,
}

/// Returns the events of a stream as vLLM sends them.
fn events(wanted: &EngineRequest) -> Vec<Event> {
    let mut events = Vec::new();
    let plain = |value: Value, token, held| Event { text: format!("data: {value}\n\n"), token, held };
    let chat = wanted.messages.is_some();
    let choice = |index, text: &str, end: Option<&str>| match chat {
        true => json!({"index": index, "delta": {"content": text}, "finish_reason": end}),
        false => json!({"index": index, "text": text, "logprobs": null, "finish_reason": end}),
    };
    let chunk = |choice: Value| json!({"id": "s", "created": 1, "model": "m", "choices": [choice]});
    for index in (0..wanted.n).filter(|_| chat) {
        let role =
            json!({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
        events.push(plain(chunk(role), None, false));
    }
    for token in 0..wanted.tokens {
        let held = wanted.hold_after.is_some_and(|after| token >= after);
        for index in 0..wanted.n {
            events.push(plain(chunk(choice(index, &format!(" t{token}\u{20ac}"), None)), Some(token), held));
        }
    }
    for index in 0..wanted.n {
        events.push(plain(chunk(choice(index, "", Some("length"))), None, true));
    }
    if wanted.stream_options.include_usage {
        let usage = json!({"id": "s", "created": 1, "model": "m", "choices": [], "usage": usage(wanted)});
        events.push(plain(usage, None, true));
    }
    events.push(Event { text: "data: [DONE]\n\n".into(), token: None, held: true });
    events
}

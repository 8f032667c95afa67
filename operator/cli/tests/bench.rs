//! `sluice bench` against a server of this process that speaks server-sent events.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{Value, json};

use crate::support::{ProcessOutput, TestEnv, finish, serve};

/// Time between two tokens of an answer.
const GAP: Duration = Duration::from_millis(20);

/// How the server treats its n-th request, counted from 0.
type ResponsePlan = fn(usize) -> Answer;

#[derive(Clone, Copy)]
enum Answer {
    /// The requested number of tokens.
    Whole,
    /// The requested number of tokens, three in every chunk.
    MultiToken,
    /// 429 in OpenAI's shape.
    Busy,
    /// An error in the middle of the stream.
    Broken,
    /// The stream ends in the middle without an error.
    Truncated,
}

#[derive(Clone)]
struct Server {
    plan: ResponsePlan,
    log: Arc<Mutex<ServerLog>>,
}

#[derive(Default)]
struct ServerLog {
    bodies: Vec<Value>,
    keys: Vec<Option<String>>,
    open: usize,
    open_max: usize,
}

/// A request that is being answered.
struct OpenRequest(Arc<Mutex<ServerLog>>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.lock().unwrap().open -= 1;
    }
}

impl Server {
    fn start(fate: ResponsePlan) -> (String, Arc<Mutex<ServerLog>>) {
        let seen = Arc::new(Mutex::new(ServerLog::default()));
        let models = || async { Json(json!({"data": [{"id": "tiny"}]})) };
        let router = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/completions", post(complete))
            .with_state(Server { plan: fate, log: seen.clone() });
        (format!("http://{}", serve(router)), seen)
    }

    /// Records a request. Returns its number and a guard that counts it as open.
    fn record(&self, headers: &HeaderMap, body: &Value) -> (usize, OpenRequest) {
        let mut seen = self.log.lock().unwrap();
        seen.bodies.push(body.clone());
        seen.keys.push(headers.get("authorization").map(|key| key.to_str().unwrap().to_owned()));
        seen.open += 1;
        seen.open_max = seen.open_max.max(seen.open);
        (seen.bodies.len() - 1, OpenRequest(self.log.clone()))
    }
}

async fn complete(State(server): State<Server>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let (number, open) = server.record(&headers, &body);
    let tokens = body["max_tokens"].as_u64().unwrap();
    let chunks = match (server.plan)(number) {
        Answer::Busy => {
            let error = json!({"error": {"message": "the queue is full", "type": "rate_limit"}});
            return (StatusCode::TOO_MANY_REQUESTS, Json(error)).into_response();
        }
        Answer::Whole => whole((0..tokens).map(token), tokens),
        Answer::MultiToken => whole((0..tokens.div_ceil(3)).map(|_| chunk("t t t ")), tokens),
        Answer::Broken => vec![token(0), json!({"error": {"message": "the engine is gone"}}).to_string()],
        Answer::Truncated => vec![token(0)],
    };
    Sse::new(paced(chunks, open)).into_response()
}

fn token(index: u64) -> String {
    chunk(&format!("t{index} "))
}

fn chunk(text: &str) -> String {
    json!({"choices": [{"text": text, "finish_reason": null}]}).to_string()
}

/// Returns all chunks of an answer of `tokens` tokens with the texts `texts`.
fn whole(texts: impl Iterator<Item = String>, tokens: u64) -> Vec<String> {
    let last = json!({"choices": [{"text": "", "finish_reason": "length"}]}).to_string();
    let usage = json!({"choices": [], "usage": {"completion_tokens": tokens}}).to_string();
    texts.chain([last, usage, "[DONE]".into()]).collect()
}

fn paced(chunks: Vec<String>, open: OpenRequest) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::iter(chunks).then(move |chunk| {
        let _open = &open;
        let is_token = chunk.contains("\"t");
        async move {
            if is_token {
                tokio::time::sleep(GAP).await;
            }
            Ok(Event::default().data(chunk))
        }
    })
}

fn bench(url: &str, args: &[&str]) -> ProcessOutput {
    let world = TestEnv::new();
    finish(world.sluice(&[&["bench", "--url", url], args].concat()))
}

fn report(outcome: &ProcessOutput) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} in {report}"))
}

#[test]
fn figures_add_up() {
    let (url, _) = Server::start(|_| Answer::Whole);
    let outcome = bench(&url, &["-n", "6", "--lengths", "5:7", "--json"]);
    assert_eq!(outcome.code, Some(0));
    let report = report(&outcome);
    let duration = number(&report, "/duration_s");
    let times = |pointer| (number(&report, pointer) * duration).round();
    assert_eq!((number(&report, "/completed"), number(&report, "/failed")), (6.0, 0.0));
    assert_eq!((times("/output_tokens_per_s"), times("/total_tokens_per_s")), (42.0, 72.0));
    assert_eq!(times("/requests_per_s"), 6.0);
    // A busy client may read two tokens at once, so only sums and the first token have a lower bound.
    assert!(number(&report, "/ttft_ms/p50") >= 20.0 && number(&report, "/tbt_ms/max") >= 19.0, "{report}");
    assert!(number(&report, "/e2e_ms/max") >= 140.0 && duration >= 0.14, "7 tokens of 20 ms: {report}");
}

#[test]
fn failures_are_counted_by_message() {
    let (url, _) = Server::start(|number| match number % 4 {
        0 => Answer::Whole,
        1 => Answer::Busy,
        2 => Answer::Broken,
        _ => Answer::Truncated,
    });
    let outcome = bench(&url, &["-n", "8", "--lengths", "5:7", "--json"]);
    assert_eq!(outcome.code, Some(0), "some were answered");
    let report = report(&outcome);
    assert_eq!((number(&report, "/completed"), number(&report, "/failed")), (2.0, 6.0));
    let expected = json!({
        "429 Too Many Requests: the queue is full": 2, "the engine is gone": 2,
        "the stream ended without [DONE]": 2,
    });
    assert_eq!(report["errors"], expected);
    assert_eq!((number(&report, "/output_tokens_per_s") * number(&report, "/duration_s")).round(), 14.0);
    assert!(number(&report, "/slo_attainment") <= 0.25, "a failure meets nothing: {report}");
}

#[test]
fn targets_decide_the_attainment() {
    let (url, _) = Server::start(|_| Answer::Whole);
    let shares = |ttft, tbt| {
        let outcome =
            bench(&url, &["-n", "2", "--lengths", "3:4", "--json", "--slo-ttft", ttft, "--slo-tbt", tbt]);
        let report = report(&outcome);
        ["/ttft_attainment", "/tbt_attainment", "/slo_attainment"].map(|share| number(&report, share))
    };
    assert_eq!(shares("60000", "60000"), [1.0, 1.0, 1.0]);
    let [ttft, tbt, both] = shares("60000", "1");
    assert!(ttft == 1.0 && tbt < 1.0 && both == 0.0, "{ttft} {tbt} {both}");
    assert_eq!(shares("1", "60000"), [0.0, 1.0, 0.0]);
}

#[test]
fn a_seed_means_the_same_prompts() {
    let prompts = |seed: &str| {
        let (url, seen) = Server::start(|_| Answer::Whole);
        let args = ["-n", "3", "--lengths", "4-9:1", "--concurrency", "1", "--seed", seed, "--json"];
        assert_eq!(bench(&url, &args).code, Some(0));
        let mut prompts: Vec<_> =
            seen.lock().unwrap().bodies.iter().map(|b| b["prompt"].to_string()).collect();
        prompts.sort();
        prompts
    };
    assert_eq!(prompts("7"), prompts("7"));
    assert_ne!(prompts("7"), prompts("8"));
}

#[test]
fn request_parameters_match_options() {
    let (url, seen) = Server::start(|_| Answer::Whole);
    let args = ["-n", "5", "--lengths", "6:2", "--concurrency", "2", "--api-key", "k", "--max-total", "7"];
    let outcome = bench(&url, &args);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stdout.starts_with("requests     5 answered, 0 failed"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("\n  TTFT ") && outcome.stdout.contains("\nSLO "), "{}", outcome.stdout);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.open_max, 2);
    assert!(seen.keys.iter().all(|key| key.as_deref() == Some("Bearer k")));
    for body in &seen.bodies {
        assert_eq!(body["prompt"].as_array().unwrap().len(), 6);
        assert_eq!((body["model"].as_str(), body["max_tokens"].as_u64()), (Some("tiny"), Some(1)));
        assert_eq!((body["stream"].as_bool(), body["ignore_eos"].as_bool()), (Some(true), Some(true)));
    }
}

#[test]
fn outputs_are_written_in_order_of_the_requests() {
    let (url, _) = Server::start(|_| Answer::Whole);
    let world = TestEnv::new();
    world.write("lengths.csv", "context_tokens,generated_tokens\n3,4\n3,1\n");
    let args = ["bench", "--url", &url, "-n", "2", "--lengths", "lengths.csv", "--outputs", "out.json"];
    assert_eq!(finish(world.sluice(&args)).code, Some(0));
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(world.path("out.json")).unwrap()).unwrap();
    assert_eq!(texts, ["t0 t1 t2 t3 ", "t0 "]);
}

#[test]
fn tokens_that_share_a_chunk_have_no_gap_between_them() {
    let (url, _) = Server::start(|_| Answer::MultiToken);
    let outcome = bench(&url, &["-n", "1", "--lengths", "5:9", "--json"]);
    let report = report(&outcome);
    let mean = |of: &str| number(&report, &format!("/{of}/mean"));
    assert_eq!(number(&report, "/tokens_per_chunk"), 3.0);
    // Two gaps between three chunks, eight tokens after the first.
    assert!((mean("tbt_ms") * 2.0 / 8.0 - mean("tpot_ms")).abs() < 1e-3, "{report}");
    assert!(mean("ttft_ms") + 2.0 * mean("tbt_ms") <= mean("e2e_ms"), "{report}");
}

#[test]
fn a_run_without_one_answer_fails_and_shows_no_figures() {
    let (url, _) = Server::start(|_| Answer::Busy);
    let outcome = bench(&url, &["-n", "2"]);
    assert_eq!(outcome.code, Some(1));
    let error = "429 Too Many Requests: the queue is full";
    assert!(
        outcome.stderr.contains(&format!("no request succeeded; the first error: {error}")),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stdout.contains("no request succeeded"), "{}", outcome.stdout);
    for figure in ["TTFT", "TPOT", "throughput", "SLO"] {
        assert!(!outcome.stdout.contains(figure), "{}", outcome.stdout);
    }
    let outcome = bench(&url, &["-n", "2", "--json"]);
    let report = report(&outcome);
    assert_eq!((outcome.code, report["first_error"].as_str()), (Some(1), Some(error)));
    for figure in ["ttft_ms", "tbt_ms", "tpot_ms", "e2e_ms", "tokens_per_chunk", "tbt_attainment"] {
        assert!(report[figure].is_null(), "{figure}: {report}");
    }
}

#[test]
fn a_url_without_a_server_is_named_once_with_the_cause() {
    let outcome = bench("127.0.0.1:1", &["-n", "1"]);
    let said = "sluice: no server answers at http://127.0.0.1:1: connection refused; start one with `sluice up` or name \
                another with --url\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), said));
}

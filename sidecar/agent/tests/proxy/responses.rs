//! Tests that responses are the engine's byte for byte, at the sidecar's pace and within its limits.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_common::metrics_text::sum;

use super::harness::{COMPLETIONS, Harness, wait_until};
use crate::gateway::client::Client;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_byte_identical_to_engine() {
    let world = Harness::start(json!({"pacing": "TokenDeposit", "slo": {"tbt_milliseconds": 1}})).await;
    let prompt = json!({"model": "m", "prompt": "a", "tokens": 7});
    let messages = json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "tokens": 7});
    let options = [
        json!({}),
        json!({"stream": true}),
        json!({"stream": true, "n": 3}),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
        json!({"stream": true, "stream_options": {"include_usage": false}}),
    ];
    for (path, body) in [(COMPLETIONS, &prompt), (CHAT, &messages)] {
        for more in &options {
            let mut body = body.clone();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut client = Client::connect(world.serve).await;
            client.post(path, &body).await;
            let (ours, theirs) = (client.answer().await, world.post_to_engine(path, &body).await);
            assert_eq!(ours.body, theirs.body, "{path} {body}");
            assert_eq!(ours.head.header("content-type"), theirs.head.header("content-type"));
            assert_eq!(ours.head.status, 200);
        }
    }
    // The usage of every stream is known, whether or not its client requested it.
    wait_until("all are counted", async || world.state().await["figures"]["decode_tokens_total"] != 0).await;
    let counted = world.state().await["figures"].clone();
    let tokens = 2 * (7 + 7 + 3 * 7 + 7 + 7);
    assert_eq!(counted["decode_tokens_total"], tokens);
    // One client declined the usage, so only the generated tokens of its request are known.
    assert_eq!(counted["prefill_tokens_total"], 2 * 4 * 5);
    let models = world.get("/v1/models").await;
    assert_eq!(models.body, r#"{"data":[{"id":"m"}],"object":"list"}"#);
    assert_eq!(world.get("/v1/models/m").await.json(), json!({"id": "m"}));
    world.get("/v1/models/x").await.error(
        404,
        "invalid_request_error",
        Some("model"),
        Some("model_not_found"),
    );
}

/// Whether `event` carries text of a stream.
fn token(event: &str) -> bool {
    serde_json::from_str::<Value>(event)
        .is_ok_and(|event| event["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()))
}

#[tokio::test(flavor = "multi_thread")]
async fn early_tokens_are_paced_to_objective() {
    const INTERVAL: Duration = Duration::from_millis(200);
    let slo = json!({"tbt_milliseconds": INTERVAL.as_millis() as u64});
    let world = Harness::start(json!({"pacing": "TokenDeposit", "slo": slo})).await;
    let sent = Instant::now();
    let body = json!({"prompt": "a", "stream": true, "tokens": 100, "hold_after": 100});
    let mut client = world.start_post(&body).await;
    client.head().await;
    for token_index in 0..5_u32 {
        assert!(token(&client.next_event().await));
        assert!(sent.elapsed() >= INTERVAL * token_index, "token {token_index} after {:?}", sent.elapsed());
    }
    let waiting = world.state().await["streams"]["deposit_tokens"].as_u64().unwrap();
    assert!((1..=95).contains(&waiting), "{waiting} of 100 tokens wait");
    // The engine finishes, so pacing ends.
    world.engine.release();
    let rest = client.events().await;
    assert_eq!(rest.iter().filter(|(_, event)| token(event)).count(), 95);
    assert_eq!(rest.last().unwrap().1, "[DONE]");
    wait_until("nothing waits", async || world.state().await["streams"]["deposit_tokens"] == 0).await;
    let state = world.state().await;
    let slowest = state["figures"]["delivered_tbt"]["p99_ns"].as_u64().unwrap();
    assert!(slowest >= 200_000_000, "{state}");
    let median = state["figures"]["engine_tbt"]["p50_ns"].as_u64().unwrap();
    assert!(median < 200_000_000, "they came in one burst: {state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unpaced_tokens_are_written_at_once() {
    let world = Harness::start(json!({"slo": {"tbt_milliseconds": 60_000}})).await;
    let body = json!({"prompt": "a", "stream": true, "tokens": 12, "hold_after": 12});
    let mut client = world.start_post(&body).await;
    client.head().await;
    for _ in 0..12 {
        assert!(token(&client.next_event().await));
    }
    world.engine.release();
    assert_eq!(client.events().await.last().unwrap().1, "[DONE]");
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_aborts_engine_request() {
    let world = Harness::start(json!({"pacing": "TokenDeposit"})).await;
    let stream = json!({"prompt": "a", "stream": true, "tokens": 4, "hold_after": 2});
    let mut client = world.start_post(&stream).await;
    client.head().await;
    client.next_event().await;
    drop(client);
    world.engine.wait_for_log("gone", 1).await;
    wait_until("its place is free", async || world.state().await["queue"]["running"] == 0).await;
    // A client that waits for its first byte can disconnect as well.
    let client = world.start_post(&json!({"prompt": "a", "tokens": 1, "hold_after": 0})).await;
    world.engine.wait_for_log("request", 2).await;
    drop(client);
    wait_until("its place is free", async || world.state().await["queue"]["running"] == 0).await;
    let streams = world.state().await["streams"].clone();
    assert_eq!(streams, json!({"open": 0, "deposit_tokens": 0}));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_limit_request_does_not_reach_engine() {
    let limits =
        json!({"max_streams": 2, "max_body_bytes": 2000, "max_prompt_tokens": 40, "max_queued_requests": 9});
    let world = Harness::start(json!({ "limits": limits })).await;
    let kind = "invalid_request_error";
    world.post(&json!({"prompt": "a", "model": "x"})).await.error(
        404,
        kind,
        Some("model"),
        Some("model_not_found"),
    );
    world.post(&json!({"prompt": "a".repeat(3000)})).await.error(413, kind, None, None);
    world.post(&json!({"prompt": vec![1; 41]})).await.error(400, kind, Some("prompt"), None);
    // The engine counts the tokens of a text.
    let message = world.post(&json!({"prompt": "b".repeat(50)})).await.error(400, kind, Some("prompt"), None);
    assert_eq!(message, "the prompt has 50 tokens, the limit is 40");
    world.post(&json!({"prompt": "a", "n": 3})).await.error(400, kind, Some("n"), None);
    assert_eq!(world.engine.count("request"), 0);
    assert_eq!(world.post(&json!({"prompt": "b".repeat(40)})).await.head.status, 200);
    let open = world.start_post(&json!({"prompt": "a", "n": 2, "stream": true, "hold_after": 0})).await;
    world.engine.wait_for_log("request", 2).await;
    let busy = world.post(&json!({"prompt": "a"})).await;
    busy.error(429, "rate_limit_error", None, Some("rate_limit_exceeded"));
    assert_eq!(busy.head.header("retry-after"), Some("1"));
    drop(open);
    wait_until("its places are free", async || world.post(&json!({"prompt": "a"})).await.head.status == 200)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_is_not_forwarded() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "secret\n").unwrap();
    let world = Harness::start(json!({"api_keys_file": keys.path()})).await;
    let kind = "invalid_request_error";
    world.post(&json!({"prompt": "a"})).await.error(401, kind, None, Some("invalid_api_key"));
    world.get("/v1/models").await.error(401, kind, None, Some("invalid_api_key"));
    assert_eq!(world.engine.count("request"), 0);
    let mut client = Client::connect(world.serve).await;
    let headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer secret"),
        ("x-llm-d-prefill", "elsewhere"),
        ("x-request-id", "7"),
        ("cookie", "a=b"),
    ];
    client.send("POST", COMPLETIONS, &headers, br#"{"prompt":"a"}"#).await;
    assert_eq!(client.answer().await.head.status, 200);
    let line = world.engine.log_lines().into_iter().find(|line| line.starts_with("request")).unwrap();
    let mut names: Vec<_> = line.split(" headers ").nth(1).unwrap().split(',').collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "content-length", "content-type", "host", "x-request-id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_metrics_are_merged_unchanged() {
    let world = Harness::start(json!({})).await;
    world.post(&json!({"prompt": "a", "stream": true})).await;
    wait_until("it is counted", async || world.state().await["figures"]["decode_tokens_total"] == 3).await;
    let answer = world.get("/metrics").await;
    assert_eq!(answer.head.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let (ours, theirs): (Vec<&str>, Vec<&str>) = answer
        .body
        .lines()
        .partition(|line| line.replace("# TYPE ", "").replace("# HELP ", "").starts_with("sluice_"));
    assert_eq!(theirs, super::engine::METRICS.lines().collect::<Vec<_>>());
    let value = |name: &str| sum(&answer.body, name, &[]).unwrap_or_else(|| panic!("no {name}: {ours:#?}"));
    assert_eq!(value("sluice_generation_tokens_total"), 3.0);
    assert_eq!(value("sluice_prompt_tokens_total"), 5.0);
    assert_eq!(value("sluice_ttft_seconds_count"), 1.0);
    assert_eq!(value("sluice_engine_tbt_seconds_count"), 2.0);
    assert_eq!(value("sluice_tenant_info"), 1.0);
    assert!(ours.contains(&"# TYPE sluice_requests_total counter"), "{ours:#?}");
    assert_eq!(world.probe("/metrics").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_engine_misses_objective() {
    let slo = json!({"ttft_milliseconds": 0, "tbt_milliseconds": 0});
    let world = Harness::start(json!({"slo": slo})).await;
    let objectives = async || {
        let slo = world.state().await["slo"].take();
        ["ttft_attained_permille", "ttft_overdue", "tbt_attained_permille", "tbt_overdue"]
            .map(|name| slo[name].clone())
    };
    let first = world.start_post(&json!({"prompt": "a", "stream": true, "hold_after": 0})).await;
    let wanted = [json!(0), json!(1), Value::Null, json!(0)];
    wait_until("the first token is overdue", async || objectives().await == wanted).await;
    let second = world.start_post(&json!({"prompt": "a", "stream": true, "hold_after": 1})).await;
    let wanted = [json!(0), json!(1), json!(0), json!(1)];
    wait_until("the next token of the other is overdue", async || objectives().await == wanted).await;
    drop((first, second));
    let wanted = [json!(0), json!(0), json!(0), json!(0)];
    wait_until("clients that left await nothing, and missed it", async || objectives().await == wanted).await;
    let counted = [world.objective("ttft").await, world.objective("tbt").await];
    assert_eq!(counted, [Some((2, 2)), Some((1, 1))], "each is counted once");
}

//! Tests of the gateway's metrics.

use std::time::{Duration, Instant};

use serde_json::json;
use sluice_agent::scheduler_handle::Status;
use sluice_common::metrics_text::sum;
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::Finish;
use sluice_wire::config::SloConfig;

use super::client::TIMEOUT;
use super::harness::{Harness, HarnessConfig};

#[tokio::test(flavor = "multi_thread")]
async fn request_is_counted_in_vllm_and_sluice_metrics() {
    let pacing = Pacing::Paced { interval_ns: 20_000_000 };
    let mut world = Harness::start(HarnessConfig { pacing, ..HarnessConfig::default() }).await;
    world.answer_all("abcd");
    let answer = world.post("/v1/completions", &json!({"prompt": "four", "stream": true})).await;
    assert_eq!(answer.head.status, 200);
    let answer = world.get("/metrics").await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((answer.head.status, answer.head.header("content-type")), (200, Some(kind)));
    let value = |name: &str| {
        let found = sum(&answer.body, name, &[("model_name", "tiny")]);
        found.unwrap_or_else(|| panic!("no {name} in\n{}", answer.body))
    };
    for (name, wanted) in [
        ("vllm:prompt_tokens_total", 4.0),
        ("vllm:prefix_cache_queries_total", 4.0),
        ("vllm:generation_tokens_total", 4.0),
        ("vllm:inter_token_latency_seconds_count", 3.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("vllm:e2e_request_latency_seconds_count", 1.0),
        ("sluice_deposit_tokens", 0.0),
        ("sluice_open_requests", 0.0),
    ] {
        assert_eq!(value(name), wanted, "{name}");
    }
    assert!(
        answer
            .body
            .contains("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"} 1\n")
    );
    assert!(answer.body.ends_with("# EOF\n"));
}

/// Starts a gateway whose objectives are missed immediately.
async fn strict(status: Status) -> Harness {
    let slo = SloConfig { ttft_milliseconds: 0, tbt_milliseconds: 0, ..SloConfig::default() };
    Harness::start(HarnessConfig { slo, status, ..HarnessConfig::default() }).await
}

/// Returns attainment, overdue tokens, all tokens and missed tokens of an objective, parsed from the exposition.
fn attainment(world: &Harness, objective: &str) -> [Option<f64>; 4] {
    let text = world.metrics.encode();
    let value = |name: &str| sum(&text, name, &[("model_name", "tiny"), ("objective", objective)]);
    [
        "sluice_slo_attainment_ratio",
        "sluice_overdue_tokens",
        "sluice_slo_tokens_total",
        "sluice_slo_missed_tokens_total",
    ]
    .map(value)
}

async fn wait_for_attainment(world: &Harness, objective: &str, wanted: [f64; 4]) {
    let until = Instant::now() + TIMEOUT;
    while attainment(world, objective) != wanted.map(Some) {
        let last = attainment(world, objective);
        assert!(Instant::now() < until, "{objective}: {last:?}, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_scheduler_misses_objective() {
    let world = strict(Status::Serving).await;
    let body = json!({"prompt": "four", "stream": true, "max_tokens": 9});
    let mut client = world.start_post("/v1/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    wait_for_attainment(&world, "ttft", [0.0, 1.0, 1.0, 1.0]).await;
    taken.send_text("a");
    assert_eq!(client.head().await.status, 200);
    wait_for_attainment(&world, "ttft", [0.0, 0.0, 1.0, 1.0]).await;
    wait_for_attainment(&world, "tbt", [0.0, 1.0, 1.0, 1.0]).await;
    taken.send_text("b");
    wait_for_attainment(&world, "tbt", [0.0, 1.0, 2.0, 2.0]).await;
    drop(client);
    assert!(world.scheduler.cancelled(TIMEOUT).await.is_some(), "it is given up");
    wait_for_attainment(&world, "tbt", [0.0, 0.0, 2.0, 2.0]).await;
    assert_eq!(attainment(&world, "ttft"), [0.0, 0.0, 1.0, 1.0].map(Some), "counted once");
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_and_full_responses_count_toward_objective() {
    let world = strict(Status::Serving).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "four", "n": 3})).await;
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(world.scheduler.recv_request().await);
    }
    wait_for_attainment(&world, "ttft", [0.0, 3.0, 3.0, 3.0]).await;
    taken[0].send_text("a");
    wait_for_attainment(&world, "ttft", [0.0, 2.0, 3.0, 3.0]).await;
    for taken in &taken {
        taken.finish(Finish::Failed("broken".into()));
    }
    assert_eq!(client.answer().await.head.status, 502);
    wait_for_attainment(&world, "ttft", [0.0, 0.0, 3.0, 3.0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_requests_miss_objective() {
    let world = strict(Status::Loading).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "four"})).await;
    wait_for_attainment(&world, "ttft", [0.0, 1.0, 1.0, 1.0]).await;
    world.status.send(Status::Failed("bad weights".into())).unwrap();
    assert_eq!(client.answer().await.head.status, 503);
    wait_for_attainment(&world, "ttft", [0.0, 0.0, 1.0, 1.0]).await;
}

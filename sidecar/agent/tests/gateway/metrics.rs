//! What the gateway counts.

use serde_json::json;
use sluice_policy::deposit::Pacing;

use super::world::{Setup, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_counted_in_vllms_names_and_in_ours() {
    let pacing = Pacing::Paced { interval_ns: 20_000_000 };
    let mut world = World::start(Setup { pacing, ..Setup::default() }).await;
    world.autopilot("abcd");
    let answer = world.post("/v1/completions", &json!({"prompt": "four", "stream": true})).await;
    assert_eq!(answer.head.status, 200);
    let answer = world.get("/metrics").await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((answer.head.status, answer.head.header("content-type")), (200, Some(kind)));
    let value = |name: &str| {
        let line = answer.body.lines().find(|line| line.starts_with(&format!("{name}{{model_name=\"tiny\"")));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{}", answer.body));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
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

//! Tests of an engine that exits by SIGKILL and of a sidecar that is stopped.

use serde_json::{Value, json};

use super::harness::{Harness, config, sidecar, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn request_without_first_byte_is_resent_to_new_engine() {
    let slo = json!({"ttft_milliseconds": 600_000, "tbt_milliseconds": 600_000});
    let world = Harness::start(json!({"limits": {"hold_seconds": 60}, "slo": slo})).await;
    let stream = world.start_post(&json!({"prompt": "a", "stream": true, "die_before": 0})).await;
    world.engine.wait_exit().await;
    world.wait_for_phase("EngineLost").await;
    assert_eq!(world.probe("/ready").await, 200);
    // A request that arrives while there is no engine is held as well.
    let plain = world.start_post(&json!({"prompt": "b"})).await;
    wait_until("both are held", async || world.state().await["queue"]["waiting"] == 2).await;
    world.engine.start();
    for mut client in [stream, plain] {
        let answer = client.answer().await;
        assert_eq!(answer.head.status, 200);
        assert!(answer.body.contains("t2"), "{}", answer.body);
    }
    assert_eq!(world.engine.count("request {\"stream_options\""), 2, "{:?}", world.engine.log_lines());
    let first_token = async || world.objective("ttft").await == Some((1, 0));
    wait_until("the stream's first token came in time, by the successor", first_token).await;
    let engine = world.state().await["engine"].clone();
    assert_eq!((&engine["restarts"], &engine["attempt"]), (&json!(1), &json!(2)));
    assert!(world.get("/metrics").await.body.contains("sluice_engine_losses_total{model_name=\"m\"} 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_stream_reports_error_and_next_request_succeeds() {
    let world = Harness::start(json!({"pacing": "TokenDeposit", "limits": {"hold_seconds": 60}})).await;
    let mut client =
        world.start_post(&json!({"prompt": "a", "stream": true, "tokens": 9, "die_before": 4})).await;
    assert_eq!(client.head().await.status, 200);
    let events: Vec<String> = client.events().await.into_iter().map(|(_, event)| event).collect();
    // All received events, the error, and the end marker that clients wait for.
    assert_eq!(events.len(), 6, "{events:?}");
    let error: Value = serde_json::from_str(&events[4]).unwrap();
    assert_eq!(error["error"]["type"], "server_error", "{error}");
    assert_eq!(events[5], "[DONE]");
    world.engine.wait_exit().await;
    world.wait_for_phase("EngineLost").await;
    world.engine.start();
    assert_eq!(world.post(&json!({"prompt": "a"})).await.head.status, 200);
    world.wait_for_phase("Idle").await;
    let metrics = world.get("/metrics").await.body;
    assert!(
        metrics.contains("sluice_requests_total{finished_reason=\"error\",model_name=\"m\"} 1\n")
            || metrics.contains("sluice_requests_total{model_name=\"m\",finished_reason=\"error\"} 1\n"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn token_lost_with_engine_counts_as_missed() {
    let slo = json!({"ttft_milliseconds": 600_000, "tbt_milliseconds": 600_000});
    let world = Harness::start(json!({"limits": {"hold_seconds": 60}, "slo": slo})).await;
    world.post(&json!({"prompt": "a", "stream": true, "tokens": 3, "n": 2})).await;
    // Of two choices, the first written token counts as the request's first.
    wait_until("a whole stream is in time", async || {
        [world.objective("ttft").await, world.objective("tbt").await] == [Some((1, 0)), Some((4, 0))]
    })
    .await;
    world.post(&json!({"prompt": "a", "stream": true, "tokens": 9, "die_before": 4})).await;
    wait_until("the fifth token is missed", async || {
        [world.objective("ttft").await, world.objective("tbt").await] == [Some((2, 0)), Some((8, 1))]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_time_is_bounded() {
    let limits = json!({"hold_seconds": 5, "max_queued_requests": 1});
    let world = Harness::without_engine(json!({ "limits": limits }), true);
    assert_eq!((world.probe("/ready").await, world.probe("/startup").await), (503, 200));
    assert_eq!(world.state().await["phase"], "Loading");
    let mut first = world.start_post(&json!({"prompt": "a"})).await;
    wait_until("one is held", async || world.state().await["queue"]["waiting"] == 1).await;
    let second = world.post(&json!({"prompt": "a"})).await;
    second.error(429, "rate_limit_error", None, Some("rate_limit_exceeded"));
    let refused = first.answer().await;
    refused.error(503, "service_unavailable", None, None);
    assert_eq!(refused.head.header("retry-after"), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_drains_open_streams_before_exit() {
    let mut world = Harness::start(json!({})).await;
    let mut client = world.start_post(&json!({"prompt": "a", "stream": true, "hold_after": 1})).await;
    client.head().await;
    client.next_event().await;
    world.terminate();
    wait_until("no client is let in", async || tokio::net::TcpStream::connect(world.serve).await.is_err())
        .await;
    world.engine.release();
    assert_eq!(client.events().await.last().unwrap().1, "[DONE]");
    assert_eq!(world.wait_exit().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_cut_after_drain_report_reason() {
    let mut world = Harness::start(json!({"drain_seconds": 1})).await;
    let mut stream = world.start_post(&json!({"prompt": "a", "stream": true, "hold_after": 1})).await;
    stream.head().await;
    stream.next_event().await;
    let mut plain = world.start_post(&json!({"prompt": "a", "hold_after": 1})).await;
    world.engine.wait_for_log("request", 2).await;
    world.terminate();
    let events: Vec<String> = stream.events().await.into_iter().map(|(_, event)| event).collect();
    assert!(events[0].contains("service_unavailable") && events[1] == "[DONE]", "{events:?}");
    plain.answer().await.error(503, "service_unavailable", None, None);
    assert_eq!(world.wait_exit().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_hook_waits_for_open_streams() {
    let world = Harness::start(json!({})).await;
    let mut client = world.start_post(&json!({"prompt": "a", "stream": true, "hold_after": 1})).await;
    client.head().await;
    let mut hook = crate::gateway::client::Client::connect(world.probes).await;
    hook.send("GET", "/drain", &[], b"").await;
    wait_until("not ready", async || world.probe("/ready").await == 503).await;
    // A client that has not noticed the drain yet is still served.
    assert_eq!(world.post(&json!({"prompt": "a"})).await.head.status, 200);
    world.engine.release();
    client.events().await;
    assert_eq!(hook.answer().await.body, "drained\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_config_of_proxied_engine_is_refused() {
    let local = "127.0.0.1:1".parse().unwrap();
    let wrong = [
        (json!({"engine": {"kind": "Vllm"}}), "engine.url"),
        (json!({"engine": {"kind": "Vllm", "url": "http://10.1.2.3:8000"}}), "engine.url"),
        (
            json!({"engine": {"kind": "Vllm", "url": "http://127.0.0.1:1", "spawn": "/bin/true"}}),
            "engine.spawn",
        ),
        (json!({"journal": "/tmp/journal"}), "journal"),
        (json!({"debug": {"poison": true}}), "debug"),
        (json!({"pacing": "Fast"}), "pacing"),
    ];
    for (more, field) in wrong {
        let folder = tempfile::tempdir().unwrap();
        let mut child = sidecar(folder.path(), &config(folder.path(), local, more.clone()));
        wait_until("it ends", async || child.try_wait().unwrap().is_some()).await;
        assert_eq!(child.wait().unwrap().code(), Some(78), "{more}");
        let word = std::fs::read_to_string(
            folder.path().join("run").join(sluice_wire::config_rejection::ConfigRejection::FILE),
        );
        let refusal: Value = serde_json::from_str(&word.unwrap()).unwrap();
        assert_eq!(refusal["fields"], json!([field]), "{more}");
    }
}

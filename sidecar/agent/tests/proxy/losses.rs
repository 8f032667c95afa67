//! The engine dies by SIGKILL, or the sidecar is told to end.

use serde_json::{Value, json};

use super::world::{World, config, sidecar, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_first_byte_is_sent_to_the_engines_successor() {
    let slo = json!({"ttft_milliseconds": 600_000, "tbt_milliseconds": 600_000});
    let world = World::start(json!({"limits": {"hold_seconds": 60}, "slo": slo})).await;
    let stream = world.posted(&json!({"prompt": "a", "stream": true, "die_before": 0})).await;
    world.engine.ended().await;
    world.phase("EngineLost").await;
    assert_eq!(world.probe("/ready").await, 200);
    // Whoever comes while nobody is there is held as well.
    let plain = world.posted(&json!({"prompt": "b"})).await;
    until("both are held", async || world.state().await["queue"]["waiting"] == 2).await;
    world.engine.start();
    for mut client in [stream, plain] {
        let answer = client.answer().await;
        assert_eq!(answer.head.status, 200);
        assert!(answer.body.contains("t2"), "{}", answer.body);
    }
    assert_eq!(world.engine.count("request {\"stream_options\""), 2, "{:?}", world.engine.diary());
    let first_token = async || world.objective("ttft").await == Some((1, 0));
    until("the stream's first token came in time, by the successor", first_token).await;
    let engine = world.state().await["engine"].clone();
    assert_eq!((&engine["restarts"], &engine["attempt"]), (&json!(1), &json!(2)));
    assert!(world.get("/metrics").await.body.contains("sluice_engine_losses_total{model_name=\"m\"} 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_says_so_and_the_next_request_is_served() {
    let world = World::start(json!({"pacing": "TokenDeposit", "limits": {"hold_seconds": 60}})).await;
    let mut client =
        world.posted(&json!({"prompt": "a", "stream": true, "tokens": 9, "die_before": 4})).await;
    assert_eq!(client.head().await.status, 200);
    let events: Vec<String> = client.events().await.into_iter().map(|(_, event)| event).collect();
    // All that came, why no more does, and the end that clients wait for.
    assert_eq!(events.len(), 6, "{events:?}");
    let error: Value = serde_json::from_str(&events[4]).unwrap();
    assert_eq!(error["error"]["type"], "server_error", "{error}");
    assert_eq!(events[5], "[DONE]");
    world.engine.ended().await;
    world.phase("EngineLost").await;
    world.engine.start();
    assert_eq!(world.post(&json!({"prompt": "a"})).await.head.status, 200);
    world.phase("Idle").await;
    let metrics = world.get("/metrics").await.body;
    assert!(
        metrics.contains("sluice_requests_total{finished_reason=\"error\",model_name=\"m\"} 1\n")
            || metrics.contains("sluice_requests_total{model_name=\"m\",finished_reason=\"error\"} 1\n"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_a_dead_engine_does_not_make_is_missed_and_a_stream_that_ends_misses_none() {
    let slo = json!({"ttft_milliseconds": 600_000, "tbt_milliseconds": 600_000});
    let world = World::start(json!({"limits": {"hold_seconds": 60}, "slo": slo})).await;
    world.post(&json!({"prompt": "a", "stream": true, "tokens": 3, "n": 2})).await;
    // Of two choices, the first token is the request's.
    until("a whole stream is in time", async || {
        [world.objective("ttft").await, world.objective("tbt").await] == [Some((1, 0)), Some((4, 0))]
    })
    .await;
    world.post(&json!({"prompt": "a", "stream": true, "tokens": 9, "die_before": 4})).await;
    until("the fifth token is missed", async || {
        [world.objective("ttft").await, world.objective("tbt").await] == [Some((2, 0)), Some((8, 1))]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_held_beyond_the_bound() {
    let limits = json!({"hold_seconds": 5, "max_queued_requests": 1});
    let world = World::without_engine(json!({ "limits": limits }), true);
    assert_eq!((world.probe("/ready").await, world.probe("/startup").await), (503, 200));
    assert_eq!(world.state().await["phase"], "Loading");
    let mut first = world.posted(&json!({"prompt": "a"})).await;
    until("one is held", async || world.state().await["queue"]["waiting"] == 1).await;
    let second = world.post(&json!({"prompt": "a"})).await;
    second.error(429, "rate_limit_error", None, Some("rate_limit_exceeded"));
    let refused = first.answer().await;
    refused.error(503, "service_unavailable", None, None);
    assert_eq!(refused.head.header("retry-after"), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_end_before_the_sidecar_does() {
    let mut world = World::start(json!({})).await;
    let mut client = world.posted(&json!({"prompt": "a", "stream": true, "hold_after": 1})).await;
    client.head().await;
    client.next_event().await;
    world.terminate();
    until("nobody is let in", async || tokio::net::TcpStream::connect(world.serve).await.is_err()).await;
    world.engine.release();
    assert_eq!(client.events().await.last().unwrap().1, "[DONE]");
    assert_eq!(world.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_do_not_end_in_time_are_told_why() {
    let mut world = World::start(json!({"drain_seconds": 1})).await;
    let mut stream = world.posted(&json!({"prompt": "a", "stream": true, "hold_after": 1})).await;
    stream.head().await;
    stream.next_event().await;
    let mut plain = world.posted(&json!({"prompt": "a", "hold_after": 1})).await;
    world.engine.noted("request", 2).await;
    world.terminate();
    let events: Vec<String> = stream.events().await.into_iter().map(|(_, event)| event).collect();
    assert!(events[0].contains("service_unavailable") && events[1] == "[DONE]", "{events:?}");
    plain.answer().await.error(503, "service_unavailable", None, None);
    assert_eq!(world.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hook_waits_for_open_streams() {
    let world = World::start(json!({})).await;
    let mut client = world.posted(&json!({"prompt": "a", "stream": true, "hold_after": 1})).await;
    client.head().await;
    let mut hook = crate::gateway::client::Client::connect(world.probes).await;
    hook.send("GET", "/drain", &[], b"").await;
    until("not ready", async || world.probe("/ready").await == 503).await;
    // Who does not know yet is served.
    assert_eq!(world.post(&json!({"prompt": "a"})).await.head.status, 200);
    world.engine.release();
    client.events().await;
    assert_eq!(hook.answer().await.body, "drained\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxied_engine_cannot_follow_is_refused_by_name() {
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
        until("it ends", async || child.try_wait().unwrap().is_some()).await;
        assert_eq!(child.wait().unwrap().code(), Some(78), "{more}");
        let word =
            std::fs::read_to_string(folder.path().join("run").join(sluice_wire::refusal::Refusal::FILE));
        let refusal: Value = serde_json::from_str(&word.unwrap()).unwrap();
        assert_eq!(refusal["fields"], json!([field]), "{more}");
    }
}

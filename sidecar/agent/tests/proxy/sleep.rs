//! Tests of sleep: which callers can start it, which requests are held, and what wakes the engine.

use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{Harness, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn first_request_wakes_sleeping_engine() {
    let world = Harness::start(json!({})).await;
    assert_eq!(world.admin("GET", "/is_sleeping", &Value::Null).await.json(), json!({"is_sleeping": false}));
    assert_eq!(world.admin("POST", "/sleep?level=1", &Value::Null).await.head.status, 200);
    assert_eq!(world.admin("GET", "/is_sleeping", &Value::Null).await.json(), json!({"is_sleeping": true}));
    let state = world.state().await;
    assert_eq!((&state["phase"], &state["queue"]["waiting"]), (&json!("Hibernated"), &json!(0)));
    assert_eq!(state["activity"]["resident_since_unix_ms"], Value::Null);
    assert_eq!((world.probe("/ready").await, world.probe("/live").await), (200, 200));
    // A sleeping engine can list its models.
    assert_eq!(world.get("/v1/models").await.head.status, 200);
    assert_eq!(world.engine.count("wake_up"), 0);
    let asked = [json!({"prompt": "a"}), json!({"prompt": "b"})];
    let both = tokio::join!(world.post(&asked[0]), world.post(&asked[1]));
    assert_eq!((both.0.head.status, both.1.head.status), (200, 200));
    let lines: Vec<_> = world.engine.log_lines();
    let order = ["sleep level=1", "wake_up", "request"]
        .map(|what| lines.iter().position(|line| line.starts_with(what)));
    assert!(order.is_sorted() && order[0].is_some() && order[2].is_some(), "{lines:?}");
    assert_eq!((world.engine.count("wake_up"), world.engine.count("ASKED WHILE ASLEEP")), (1, 0));
    let metrics = world.get("/metrics").await.body;
    assert!(metrics.contains("sluice_wake_seconds_count{model_name=\"m\"} 1\n"), "{metrics}");
    assert!(!metrics.contains("sluice_held_seconds_count{model_name=\"m\"} 0\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_stays_awake_while_request_is_open() {
    let world = Harness::start(json!({"hibernate_after_seconds": 1})).await;
    let mut stream = world.start_post(&json!({"prompt": "a", "stream": true, "hold_after": 0})).await;
    world.engine.wait_for_log("request", 1).await;
    let refused = world.admin("POST", "/sleep", &Value::Null).await;
    assert_eq!(refused.head.status, 409);
    assert!(refused.body.contains("1 requests are open"), "{}", refused.body);
    let level = world.admin("POST", "/sleep?level=2", &Value::Null).await;
    assert_eq!(level.head.status, 409, "{level:?}");
    // Longer than an idle engine needs to fall asleep.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(world.engine.count("sleep"), 0);
    world.engine.release();
    assert_eq!(stream.answer().await.head.status, 200);
    world.engine.wait_for_log("sleep level=1", 1).await;
    world.wait_for_phase("Hibernated").await;
    assert_eq!(world.post(&json!({"prompt": "a"})).await.head.status, 200);
    assert_eq!(world.engine.count("ASKED WHILE ASLEEP"), 0);
    world.engine.wait_for_log("sleep level=1", 2).await;
    assert_eq!(world.admin("POST", "/wake_up", &Value::Null).await.head.status, 200);
    assert_eq!(world.engine.count("wake_up"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn directive_sets_sleep_timeout_and_loans_are_declined() {
    let world = Harness::start(json!({})).await;
    let directive = json!({
        "version": 2, "epoch": 3, "sequence": 1, "policy": "Unified",
        "tenant": {"priority": 7, "max_remapped_percent": 60, "hibernate_after_seconds": 2, "idle_after_seconds": 1},
        "sharing": "Isolated", "victim": "MostRecentlyUsed", "min_residence_ms": 500, "revoke_bound_ms": 200,
        "peers": [], "fallback_order": [],
    });
    let taken = world.admin("PUT", "/v1/directive", &directive).await;
    assert_eq!(taken.json(), json!({"current": {"epoch": 3, "sequence": 1}}));
    // The sidecar owns none of the memory, so any cap and any share are accepted.
    let mut other = directive.clone();
    other["sequence"] = json!(2);
    (other["tenant"]["max_remapped_percent"], other["tenant"]["share_bytes"]) = (json!(5), json!(1 << 20));
    assert_eq!(world.admin("PUT", "/v1/directive", &other).await.head.status, 200);
    world.engine.wait_for_log("sleep level=1", 1).await;
    world.wait_for_phase("Hibernated").await;
    let state = world.state().await;
    assert_eq!((&state["memory"]["capacity_bytes"], &state["peers"]), (&json!(0), &Value::Null));
    let golden = include_str!("../../../../crds/wire/tests/golden/grant-requests-v2.json");
    let requests: Vec<Value> = serde_json::from_str(golden).unwrap();
    let answer = world.admin("POST", "/v1/grants", &requests[0]).await;
    assert!(answer.body.contains("NotTraded"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_without_sleep_mode_never_sleeps() {
    let world = Harness::without_engine(json!({"hibernate_after_seconds": 1}), false);
    world.engine.start();
    world.wait_ready().await;
    let refused = world.admin("POST", "/sleep", &Value::Null).await;
    assert_eq!(refused.head.status, 409);
    assert!(refused.body.contains("--enable-sleep-mode"), "{}", refused.body);
    assert_eq!(world.admin("GET", "/is_sleeping", &Value::Null).await.json(), json!({"is_sleeping": false}));
    assert_eq!(world.admin("POST", "/wake_up", &Value::Null).await.head.status, 200);
    wait_until("idle", async || world.state().await["phase"] == "Idle").await;
    assert_eq!(world.post(&json!({"prompt": "a"})).await.head.status, 200);
}

/// Other processes on the pod's loopback can put the engine to sleep too.
#[tokio::test(flavor = "multi_thread")]
async fn external_sleep_is_detected() {
    let world = Harness::start(json!({})).await;
    assert_eq!(world.post_to_engine("/sleep?level=1", &Value::Null).await.head.status, 200);
    world.wait_for_phase("Hibernated").await;
    assert_eq!(world.post(&json!({"prompt": "a"})).await.head.status, 200);
    assert_eq!(world.engine.count("ASKED WHILE ASLEEP"), 0);
}

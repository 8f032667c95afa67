//! Tests of authorization, request limits, and requests that wait.

use std::time::{Duration, Instant};

use serde_json::json;
use sluice_agent::scheduler_handle::{RequestUpdate, Status};
use sluice_scheduler::{Finish, RejectReason, UnavailableReason};
use sluice_wire::config::LimitsConfig;

use super::harness::{Harness, HarnessConfig};

const INVALID: &str = "invalid_request_error";

#[tokio::test(flavor = "multi_thread")]
async fn configured_keys_are_required() {
    let keys = vec!["first".into(), "second".into()];
    let mut world = Harness::start(HarnessConfig { keys, ..HarnessConfig::default() }).await;
    world.answer_all("x");
    let body = br#"{"prompt": "p"}"#;
    for (given, status) in [
        (None, 401),
        (Some("Bearer wrong"), 401),
        (Some("Basic first"), 401),
        (Some("Bearer firs"), 401),
        (Some("Bearer second"), 200),
    ] {
        let mut client = world.client().await;
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(given.map(|value| ("authorization", value)));
        client.send("POST", "/v1/completions", &headers, body).await;
        let answer = client.answer().await;
        assert_eq!(answer.head.status, status, "{given:?}");
        if status == 401 {
            answer.error(401, INVALID, None, Some("invalid_api_key"));
            assert_eq!(answer.head.header("www-authenticate"), Some("Bearer"));
        }
    }
    world.get("/v1/models").await.error(401, INVALID, None, Some("invalid_api_key"));
    assert_eq!(world.get("/health").await.head.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_above_limit_or_context_is_400() {
    let limits = LimitsConfig { max_prompt_tokens: Some(10), ..LimitsConfig::default() };
    let world = Harness::start(HarnessConfig { limits, context: 20, ..HarnessConfig::default() }).await;
    let answer = world.post("/v1/completions", &json!({"prompt": "12345678901"})).await;
    answer.error(400, INVALID, Some("prompt"), None);
    let answer = world.post("/v1/completions", &json!({"prompt": "1234567890", "max_tokens": 11})).await;
    answer.error(400, INVALID, Some("max_tokens"), Some("context_length_exceeded"));
    let _client =
        world.start_post("/v1/completions", &json!({"prompt": "1234567890", "max_tokens": 10})).await;
    assert_eq!(world.scheduler.recv_request().await.request.max_tokens, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_refusal_is_http_status() {
    let world = Harness::start(HarnessConfig::default()).await;
    for stream in [true, false] {
        let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        world
            .scheduler
            .recv_request()
            .await
            .update(RequestUpdate::Refused(RejectReason::QueueFull { queued: 4 }));
        let answer = client.answer().await;
        answer.error(429, "rate_limit_error", None, Some("rate_limit_exceeded"));
        assert_eq!(answer.head.header("retry-after"), Some("1"));

        let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        let refusal =
            RejectReason::ContextLengthExceeded { prompt_tokens: 1, max_tokens: 2, limit_tokens: 2 };
        world.scheduler.recv_request().await.update(RequestUpdate::Refused(refusal));
        client.answer().await.error(400, INVALID, Some("max_tokens"), Some("context_length_exceeded"));

        let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        world.scheduler.recv_request().await.finish(Finish::Failed("no such luck".into()));
        assert_eq!(client.answer().await.error(502, "server_error", None, None), "no such luck");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_engine_is_503_with_retry_after() {
    let device = UnavailableReason::Device("no memory".into());
    let ends: [(Option<Finish>, &str, &str); 5] = [
        (Some(Finish::Unavailable(UnavailableReason::ShuttingDown)), "the server is shutting down", "5"),
        (
            Some(Finish::Unavailable(UnavailableReason::NoEngine { held_seconds: 9 })),
            "no engine attached within 9 s",
            "5",
        ),
        (Some(Finish::Unavailable(device)), "no memory", "30"),
        (Some(Finish::Cancelled), "the server is shutting down", "5"),
        // The scheduler has exited.
        (None, "the server is shutting down", "5"),
    ];
    let world = Harness::start(HarnessConfig::default()).await;
    for (finish, message, seconds) in ends {
        for stream in [true, false] {
            let mut client =
                world.start_post("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
            let taken = world.scheduler.recv_request().await;
            finish.iter().for_each(|finish| taken.finish(finish.clone()));
            drop(taken);
            let answer = client.answer().await;
            assert_eq!(answer.error(503, "service_unavailable", None, None), message);
            assert_eq!(answer.head.header("retry-after"), Some(seconds), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_full_response_is_http_status() {
    let world = Harness::start(HarnessConfig::default()).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p"})).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("abc");
    taken.finish(Finish::Unavailable(UnavailableReason::NoEngine { held_seconds: 9 }));
    let answer = client.answer().await;
    answer.error(503, "service_unavailable", None, None);
    assert_eq!(answer.head.header("retry-after"), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn mid_stream_failure_is_error_event() {
    let world = Harness::start(HarnessConfig::default()).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("a");
    assert_eq!(client.head().await.status, 200);
    client.next_event().await;
    taken.finish(Finish::Failed("broken".into()));
    let events: Vec<_> = client.events().await.into_iter().map(|(_, event)| event).collect();
    let wanted = json!({"error": {"message": "broken", "type": "server_error", "param": null, "code": null}});
    assert_eq!(events, [wanted.to_string(), "[DONE]".into()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_choice_counts_against_open_request_limit() {
    let limits = LimitsConfig { max_streams: 3, ..LimitsConfig::default() };
    let world = Harness::start(HarnessConfig { limits, ..HarnessConfig::default() }).await;
    let answer = world.post("/v1/completions", &json!({"prompt": "p", "n": 4})).await;
    answer.error(400, INVALID, Some("n"), None);
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "n": 2})).await;
    let both = [world.scheduler.recv_request().await, world.scheduler.recv_request().await];
    assert_eq!(world.metrics.streams().open, 2);
    let answer = world.post("/v1/completions", &json!({"prompt": "p", "n": 2})).await;
    answer.error(429, "rate_limit_error", None, Some("rate_limit_exceeded"));
    both.iter().for_each(|taken| taken.finish(Finish::Length));
    assert_eq!(client.answer().await.head.status, 200);
    let _client = world.start_post("/v1/completions", &json!({"prompt": "p", "n": 3})).await;
    // Kept alive, because a request whose scheduler has exited would end and release its permits.
    let _all = [
        world.scheduler.recv_request().await,
        world.scheduler.recv_request().await,
        world.scheduler.recv_request().await,
    ];
    assert_eq!(world.metrics.streams().open, 3, "places come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_is_held_while_loading() {
    for status in [Status::Loading, Status::EngineLost] {
        let world = Harness::start(HarnessConfig { status, ..HarnessConfig::default() }).await;
        let mut client = world.start_post("/v1/completions", &json!({"prompt": "p"})).await;
        assert!(world.scheduler.next(Duration::from_millis(100)).await.is_none(), "held");
        world.status.send(Status::Serving).unwrap();
        let taken = world.scheduler.recv_request().await;
        taken.send_text("x");
        taken.finish(Finish::Length);
        assert_eq!(client.answer().await.json()["choices"][0]["text"], "x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_timeout_is_503_with_retry_after() {
    let limits = LimitsConfig { hold_seconds: 1, ..LimitsConfig::default() };
    let world =
        Harness::start(HarnessConfig { limits, status: Status::Loading, ..HarnessConfig::default() }).await;
    let began = Instant::now();
    let answer = world.post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < Duration::from_secs(10));
    answer.error(503, "service_unavailable", None, None);
    assert!(answer.head.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok_and(|s| s > 0)));
    world.status.send(Status::Failed("bad weights".into())).unwrap();
    let answer = world.post("/v1/completions", &json!({"prompt": "p"})).await;
    assert_eq!(answer.error(503, "service_unavailable", None, None), "bad weights");
    let answer = world.post("/v1/completions", &json!({"prompt": "p", "n": 99})).await;
    answer.error(400, INVALID, Some("n"), None);
}

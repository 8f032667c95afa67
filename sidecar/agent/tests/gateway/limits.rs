//! Who may come in, how many, and what waits.

use std::time::{Duration, Instant};

use serde_json::json;
use sluice_agent::service::{Status, Update};
use sluice_scheduler::{Finish, RejectReason, UnavailableReason};
use sluice_wire::config::LimitsConfig;

use super::world::{Setup, World};

const INVALID: &str = "invalid_request_error";

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_asked_for_where_there_are_any() {
    let keys = vec!["first".into(), "second".into()];
    let mut world = World::start(Setup { keys, ..Setup::default() }).await;
    world.autopilot("x");
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
async fn a_prompt_above_its_limit_or_above_the_context_is_400() {
    let limits = LimitsConfig { max_prompt_tokens: Some(10), ..LimitsConfig::default() };
    let world = World::start(Setup { limits, context: 20, ..Setup::default() }).await;
    let answer = world.post("/v1/completions", &json!({"prompt": "12345678901"})).await;
    answer.error(400, INVALID, Some("prompt"), None);
    let answer = world.post("/v1/completions", &json!({"prompt": "1234567890", "max_tokens": 11})).await;
    answer.error(400, INVALID, Some("max_tokens"), Some("context_length_exceeded"));
    let _client = world.posted("/v1/completions", &json!({"prompt": "1234567890", "max_tokens": 10})).await;
    assert_eq!(world.scheduler.taken().await.request.max_tokens, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_scheduler_refuses_is_a_status_streamed_or_not() {
    let world = World::start(Setup::default()).await;
    for stream in [true, false] {
        let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        world.scheduler.taken().await.update(Update::Refused(RejectReason::QueueFull { queued: 4 }));
        let answer = client.answer().await;
        answer.error(429, "rate_limit_error", None, Some("rate_limit_exceeded"));
        assert_eq!(answer.head.header("retry-after"), Some("1"));

        let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        let refusal =
            RejectReason::ContextLengthExceeded { prompt_tokens: 1, max_tokens: 2, limit_tokens: 2 };
        world.scheduler.taken().await.update(Update::Refused(refusal));
        client.answer().await.error(400, INVALID, Some("max_tokens"), Some("context_length_exceeded"));

        let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        world.scheduler.taken().await.finish(Finish::Failed("no such luck".into()));
        assert_eq!(client.answer().await.error(502, "server_error", None, None), "no such luck");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_nobody_can_run_is_503_with_a_time_to_come_back_streamed_or_not() {
    let device = UnavailableReason::Device("no memory".into());
    let ends: [(Option<Finish>, &str, &str); 5] = [
        (Some(Finish::Unavailable(UnavailableReason::ShuttingDown)), "the server is shutting down", "5"),
        (
            Some(Finish::Unavailable(UnavailableReason::NoEngine { held_seconds: 9 })),
            "no engine came back within 9 s",
            "5",
        ),
        (Some(Finish::Unavailable(device)), "no memory", "30"),
        (Some(Finish::Cancelled), "the server is shutting down", "5"),
        // The scheduler has gone.
        (None, "the server is shutting down", "5"),
    ];
    let world = World::start(Setup::default()).await;
    for (finish, message, seconds) in ends {
        for stream in [true, false] {
            let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
            let taken = world.scheduler.taken().await;
            finish.iter().for_each(|finish| taken.finish(finish.clone()));
            drop(taken);
            let answer = client.answer().await;
            assert_eq!(answer.error(503, "service_unavailable", None, None), message);
            assert_eq!(answer.head.header("retry-after"), Some(seconds), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_fails_is_a_status_though_tokens_came() {
    let world = World::start(Setup::default()).await;
    let mut client = world.posted("/v1/completions", &json!({"prompt": "p"})).await;
    let taken = world.scheduler.taken().await;
    taken.say("abc");
    taken.finish(Finish::Unavailable(UnavailableReason::NoEngine { held_seconds: 9 }));
    let answer = client.answer().await;
    answer.error(503, "service_unavailable", None, None);
    assert_eq!(answer.head.header("retry-after"), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_the_middle_of_a_stream_is_an_event_and_the_stream_ends() {
    let world = World::start(Setup::default()).await;
    let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.taken().await;
    taken.say("a");
    assert_eq!(client.head().await.status, 200);
    client.next_event().await;
    taken.finish(Finish::Failed("broken".into()));
    let events: Vec<_> = client.events().await.into_iter().map(|(_, event)| event).collect();
    let wanted = json!({"error": {"message": "broken", "type": "server_error", "param": null, "code": null}});
    assert_eq!(events, [wanted.to_string(), "[DONE]".into()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_requests_are_limited_and_every_choice_is_one() {
    let limits = LimitsConfig { max_streams: 3, ..LimitsConfig::default() };
    let world = World::start(Setup { limits, ..Setup::default() }).await;
    let answer = world.post("/v1/completions", &json!({"prompt": "p", "n": 4})).await;
    answer.error(400, INVALID, Some("n"), None);
    let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "n": 2})).await;
    let both = [world.scheduler.taken().await, world.scheduler.taken().await];
    assert_eq!(world.metrics.streams().open, 2);
    let answer = world.post("/v1/completions", &json!({"prompt": "p", "n": 2})).await;
    answer.error(429, "rate_limit_error", None, Some("rate_limit_exceeded"));
    both.iter().for_each(|taken| taken.finish(Finish::Length));
    assert_eq!(client.answer().await.head.status, 200);
    let _client = world.posted("/v1/completions", &json!({"prompt": "p", "n": 3})).await;
    // Held: a request whose scheduler has gone would end, and give its places back.
    let _all = [world.scheduler.taken().await, world.scheduler.taken().await, world.scheduler.taken().await];
    assert_eq!(world.metrics.streams().open, 3, "places come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_held_while_the_tenant_loads_and_then_served() {
    for status in [Status::Loading, Status::EngineLost] {
        let world = World::start(Setup { status, ..Setup::default() }).await;
        let mut client = world.posted("/v1/completions", &json!({"prompt": "p"})).await;
        assert!(world.scheduler.next(Duration::from_millis(100)).await.is_none(), "held");
        world.status.send(Status::Serving).unwrap();
        let taken = world.scheduler.taken().await;
        taken.say("x");
        taken.finish(Finish::Length);
        assert_eq!(client.answer().await.json()["choices"][0]["text"], "x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hold_ends_in_503_with_a_time_to_come_back() {
    let limits = LimitsConfig { hold_seconds: 1, ..LimitsConfig::default() };
    let world = World::start(Setup { limits, status: Status::Loading, ..Setup::default() }).await;
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

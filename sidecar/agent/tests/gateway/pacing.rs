//! Tests of Token-Deposit in real time: no token is early or lost, order is kept, and the rest is written at the end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::{Finish, UnavailableReason};

use super::client::Client;
use super::harness::{Harness, HarnessConfig};

const INTERVAL: Duration = Duration::from_millis(40);
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

async fn paced() -> Harness {
    paced_by(INTERVAL).await
}

async fn paced_by(interval: Duration) -> Harness {
    let pacing = Pacing::Paced { interval_ns: interval.as_nanos() as u64 };
    Harness::start(HarnessConfig { pacing, ..HarnessConfig::default() }).await
}

async fn text(client: &mut Client) -> (Instant, String) {
    let event = client.next_event().await;
    let json: Value = serde_json::from_str(&event).unwrap_or_else(|e| panic!("{e}: {event}"));
    (Instant::now(), json["choices"][0]["text"].as_str().expect("a text").to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn burst_is_paced_in_order() {
    let world = paced().await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    let sent = Instant::now();
    taken.send_text("abcdef");
    assert_eq!(client.head().await.status, 200);
    let mut got = Vec::new();
    for _ in 0..5 {
        got.push(text(&mut client).await);
    }
    let shown: String = got.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(shown, "abcde");
    assert!(got[0].0 - sent < INTERVAL * 10, "the first is written at once");
    // The client reads after the server has written, so only sums of intervals have an exact lower bound.
    for (index, (at, _)) in got.iter().enumerate() {
        assert!(*at - sent >= INTERVAL * index as u32, "token {index} was early: {:?}", *at - sent);
        assert!(*at - sent <= INTERVAL * (index as u32 + 1) * 10, "token {index} was late: {:?}", *at - sent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_sees_deposits() {
    for (world, streamed, unstreamed) in
        [(paced().await, true, false), (Harness::start(HarnessConfig::default()).await, false, false)]
    {
        for (stream, paced) in [(true, streamed), (false, unstreamed)] {
            let _client =
                world.start_post("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
            let taken = world.scheduler.recv_request().await;
            assert_eq!(taken.request.paced, paced, "stream: {stream}");
            taken.finish(Finish::Length);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn early_tokens_wait_in_deposit() {
    let world = paced_by(NEVER).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("abcdef");
    assert_eq!(client.head().await.status, 200);
    assert_eq!(text(&mut client).await.1, "a");
    world.wait_for_deposit(5).await;
    taken.finish(Finish::Length);
    assert_eq!(text(&mut client).await.1, "bcdef", "and nothing of it was written before");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_stream_flushes_deposit_before_error() {
    let shutting_down = "the server is shutting down";
    let ends: [(Option<Finish>, &str); 4] = [
        (Some(Finish::Failed("broken".into())), "broken"),
        (
            Some(Finish::Unavailable(UnavailableReason::NoEngine { held_seconds: 7 })),
            "no engine attached within 7 s",
        ),
        (Some(Finish::Cancelled), shutting_down),
        // The scheduler has exited.
        (None, shutting_down),
    ];
    for (finish, message) in ends {
        let world = paced_by(NEVER).await;
        let body =
            json!({"prompt": "p", "stream": true, "stop": "</s>", "stream_options": {"include_usage": true}});
        let mut client = world.start_post("/v1/completions", &body).await;
        let taken = world.scheduler.recv_request().await;
        // The last two may begin a stop string, so their text is held back until that is decided.
        taken.send_text("abcd</");
        assert_eq!(client.head().await.status, 200);
        assert_eq!(text(&mut client).await.1, "a");
        world.wait_for_deposit(5).await;
        finish.into_iter().for_each(|finish| taken.finish(finish));
        drop(taken);
        assert_eq!(text(&mut client).await.1, "bcd</", "none is lost: {message}");
        let events: Vec<_> = client.events().await.into_iter().map(|(_, event)| event).collect();
        assert!(events[0].contains(&format!("\"message\":\"{message}\"")), "{events:?}");
        assert!(events[1].contains("\"completion_tokens\":6"), "what was written counts: {events:?}");
        assert_eq!(events[2..], ["[DONE]"]);
        assert_eq!(world.metrics.streams().deposit_tokens, 0);
        assert!(world.metrics.encode().contains("finished_reason=\"error\"} 1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_flushes_deposit() {
    let world = paced().await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    let sent = Instant::now();
    taken.send_text("a");
    assert_eq!(client.head().await.status, 200);
    assert_eq!(text(&mut client).await.1, "a");
    taken.send_text(&"b".repeat(200));
    assert_eq!(text(&mut client).await.1, "b");
    assert!(sent.elapsed() >= INTERVAL);
    let finished = Instant::now();
    taken.finish(Finish::Length);
    let events = client.events().await;
    assert!(finished.elapsed() < INTERVAL * 50, "199 intervals would be 8 s: {:?}", finished.elapsed());
    let shown = events.iter().filter_map(|(_, e)| {
        serde_json::from_str::<Value>(e).ok()?["choices"][0]["text"].as_str().map(str::to_owned)
    });
    assert_eq!(shown.collect::<String>(), "b".repeat(199), "none is lost");
    assert_eq!(world.metrics.streams().deposit_tokens, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_token_is_immediate_and_early_token_waits() {
    // Long enough that delays of a busy machine stay below one interval.
    let interval = INTERVAL * 15;
    let world = paced_by(interval).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("a");
    assert_eq!(client.head().await.status, 200);
    text(&mut client).await;
    tokio::time::sleep(interval * 2).await;
    let produced = Instant::now();
    taken.send_text("b");
    let (late, _) = text(&mut client).await;
    // Fails if the interval is counted from the moment of production.
    assert!(late - produced < interval, "written when produced: {:?}", late - produced);
    taken.send_text("c");
    let (waited, _) = text(&mut client).await;
    assert!(waited - produced >= interval, "counted from the last write: {:?}", waited - produced);
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_character_counts_as_token() {
    let world = paced().await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.recv_request().await;
    let sent = Instant::now();
    taken.send_text("€x");
    assert_eq!(client.head().await.status, 200);
    let mut got = Vec::new();
    for _ in 0..4 {
        got.push(text(&mut client).await);
    }
    let shown: Vec<_> = got.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(shown, ["", "", "€", "x"]);
    assert!(got[2].0 - sent >= INTERVAL * 2 && got[3].0 - sent >= INTERVAL * 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_responses_are_not_paced() {
    let world = paced().await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p"})).await;
    let taken = world.scheduler.recv_request().await;
    let sent = Instant::now();
    taken.send_text(&"b".repeat(500));
    taken.finish(Finish::Length);
    assert_eq!(client.answer().await.json()["choices"][0]["text"], "b".repeat(500));
    assert!(sent.elapsed() < INTERVAL * 100, "500 intervals would be 20 s: {:?}", sent.elapsed());
}

//! Clients that go away, and a server that does.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_agent::gateway::serve::{LAST_WORD, finish};
use sluice_agent::service::Status;
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::Finish;

use super::client::PATIENCE;
use super::world::{Setup, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_first_token_cancels_its_request_though_nothing_flows() {
    for stream in [true, false] {
        let world = World::start(Setup::default()).await;
        let client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": stream, "n": 2})).await;
        let (one, two) = (world.scheduler.taken().await, world.scheduler.taken().await);
        assert_eq!(world.scheduler.cancelled(Duration::from_millis(100)).await, None, "it is still there");
        drop(client);
        let mut gone = [world.scheduler.cancelled(PATIENCE).await, world.scheduler.cancelled(PATIENCE).await];
        gone.sort();
        assert_eq!(gone, [Some(one.request.id), Some(two.request.id)], "stream: {stream}");
        assert_eq!(world.metrics.streams().open, 0);
        assert!(world.metrics.encode().contains("finished_reason=\"abort\"} 2"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_cancels_its_request_though_nothing_flows() {
    for stream in [true, false] {
        let pacing = Pacing::Paced { interval_ns: 3_600_000_000_000 };
        let world = World::start(Setup { pacing, ..Setup::default() }).await;
        let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": stream})).await;
        let taken = world.scheduler.taken().await;
        taken.say("abc");
        if stream {
            client.head().await;
            client.next_event().await;
            // The first may be written before the others have come.
            world.deposit(2).await;
        }
        assert_eq!(world.scheduler.cancelled(Duration::from_millis(100)).await, None, "it is still there");
        drop(client);
        assert_eq!(world.scheduler.cancelled(PATIENCE).await, Some(taken.request.id), "stream: {stream}");
        assert_eq!(world.metrics.streams().deposit_tokens, 0, "what nobody reads is no deposit");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_is_held_gives_back_its_place() {
    let world = World::start(Setup { status: Status::Loading, ..Setup::default() }).await;
    let client = world.posted("/v1/completions", &json!({"prompt": "p"})).await;
    let until = Instant::now() + PATIENCE;
    let open = async |wanted: u32| {
        while world.metrics.streams().open != wanted {
            assert!(Instant::now() < until, "{:?}", world.metrics.streams());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    open(1).await;
    drop(client);
    open(0).await;
    world.status.send(Status::Serving).unwrap();
    assert!(world.scheduler.next(Duration::from_millis(100)).await.is_none(), "nobody wants it any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_finishes_open_streams_and_takes_nothing_new() {
    let world = World::start(Setup::default()).await;
    let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.taken().await;
    taken.say("a");
    assert_eq!(client.head().await.status, 200);
    let mut idle = world.client().await;
    idle.send("GET", "/health", &[], b"").await;
    assert_eq!(idle.answer().await.head.status, 200);
    world.stop.send(true).unwrap();
    assert!(idle.closes_within(PATIENCE).await, "an idle connection is closed");
    let until = Instant::now() + PATIENCE;
    while tokio::net::TcpStream::connect(world.address).await.is_ok() {
        assert!(Instant::now() < until, "somebody still listens");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    taken.say("b");
    taken.finish(Finish::Length);
    let events = client.events().await;
    assert_eq!(events.last().map(|(_, e)| e.as_str()), Some("[DONE]"));
    tokio::time::timeout(Duration::from_secs(5), world.serving)
        .await
        .expect("it ends with its last stream")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_ended_after_the_time_to_drain_says_why() {
    let (drain, pacing) = (Duration::from_millis(200), Pacing::Paced { interval_ns: 3_600_000_000_000 });
    let world = World::start(Setup { drain: drain + LAST_WORD, pacing, ..Setup::default() }).await;
    let mut stream = world.posted("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let streamed = world.scheduler.taken().await;
    streamed.say("ab");
    let mut whole = world.posted("/v1/completions", &json!({"prompt": "p"})).await;
    let collected = world.scheduler.taken().await;
    collected.say("a");
    assert_eq!(stream.head().await.status, 200);
    stream.next_event().await;
    world.deposit(1).await;
    let told = Instant::now();
    world.stop.send(true).unwrap();
    finish(world.serving, drain, || {
        assert!(told.elapsed() >= drain);
        streamed.finish(Finish::Cancelled);
        // A scheduler that has gone says nothing.
        drop(collected);
    })
    .await;
    let events: Vec<_> = stream.events().await.into_iter().map(|(_, event)| event).collect();
    let [token, error, done] = events.as_slice() else { panic!("{events:?}") };
    assert!(token.contains("\"text\":\"b\""), "what the deposit held is not lost: {token}");
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["type"], "service_unavailable", "{error}");
    assert_eq!(done, "[DONE]");
    whole.answer().await.error(503, "service_unavailable", None, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_waited_for_when_all_answers_have_ended() {
    let drain = Duration::from_secs(3600);
    let world = World::start(Setup { drain, ..Setup::default() }).await;
    world.stop.send(true).unwrap();
    let mut cut = 0;
    let finished = finish(world.serving, drain, || cut += 1);
    tokio::time::timeout(PATIENCE, finished).await.expect("it ends at once");
    assert_eq!(cut, 1, "the scheduler ends in any case");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_still_open_after_the_time_to_drain_is_cut() {
    let drain = Duration::from_millis(300);
    let world = World::start(Setup { drain, ..Setup::default() }).await;
    let mut client = world.posted("/v1/completions", &json!({"prompt": "p", "stream": true})).await;
    let taken = world.scheduler.taken().await;
    taken.say("a");
    assert_eq!(client.head().await.status, 200);
    client.next_event().await;
    let told = Instant::now();
    world.stop.send(true).unwrap();
    assert!(client.event().await.is_err(), "cut, not ended");
    assert!(told.elapsed() >= drain && told.elapsed() < drain * 10);
    assert_eq!(world.scheduler.cancelled(PATIENCE).await, Some(taken.request.id));
    world.serving.await.unwrap();
}

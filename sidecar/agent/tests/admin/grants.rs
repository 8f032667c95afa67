//! `POST /v1/grants`: what reaches the scheduler, and what becomes of its answer.

use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;
use sluice_agent::neighbours::call::Call;
use sluice_agent::service::Message;
use sluice_wire::grants::{GrantAnswer, GrantRequest, Participant, RefusalReason};

use super::world::{CHUNK, NEIGHBOUR_TOKEN, Port, config, refused};
use crate::gateway::client::PATIENCE;

fn participant(name: &str) -> Participant {
    Participant { namespace: "default".into(), name: name.into(), index: 0, instance: 5 }
}

fn ask() -> GrantRequest {
    GrantRequest::Ask { borrower: participant("code"), nonce: 41, bytes: 2 * CHUNK, ttl_ms: 5000 }
}

fn calls() -> (impl FnMut(Message) + Send + 'static, mpsc::Receiver<Call>) {
    let (sender, receiver) = mpsc::channel();
    let room = move |message| {
        if let Message::Call(call) = message {
            drop(sender.send(call));
        }
    };
    (room, receiver)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_the_scheduler_as_it_was_meant_and_its_answer_the_neighbour() {
    let folder = tempfile::tempdir().unwrap();
    let granted =
        GrantAnswer::Granted { nonce: 41, bytes: CHUNK, ttl_ms: 4000, lender: participant("story") };
    let answer = granted.clone();
    let room = move |message| {
        if let Message::Call(Call::Grant(request, reply)) = message {
            assert_eq!(request, ask());
            reply.send(answer.clone()).unwrap();
        }
    };
    let port = Port::start(&config(folder.path(), "story"), room).await;
    let mut peer = port.with_token(Some(NEIGHBOUR_TOKEN)).await;
    let answer = peer.ask("POST", "/v1/grants", &ask().to_json()).await;
    assert_eq!(answer.head.status, 200);
    assert_eq!(GrantAnswer::from_json(answer.body.as_bytes(), &ask(), CHUNK).unwrap(), granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_trades_nothing_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let port = Port::quiet(folder.path(), "story").await;
    let answer = port.operator().await.ask("POST", "/v1/grants", &ask().to_json()).await;
    let answer = GrantAnswer::from_json(answer.body.as_bytes(), &ask(), CHUNK).unwrap();
    assert_eq!(answer, GrantAnswer::refused(RefusalReason::NotTraded));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_never_reaches_the_scheduler() {
    let folder = tempfile::tempdir().unwrap();
    let (room, calls) = calls();
    let port = Port::start(&config(folder.path(), "story"), room).await;
    let mut peer = port.with_token(Some(NEIGHBOUR_TOKEN)).await;
    let mut half: serde_json::Value = serde_json::from_slice(&ask().to_json()).unwrap();
    half["request"]["Ask"]["bytes"] = json!(CHUNK / 2);
    let mut newer = half.clone();
    newer["version"] = json!(2);
    for (body, status, field, code) in [
        (b"[".to_vec(), 400, None, "malformed_json"),
        (b"{\"version\": 1, \"request\": {\"Take\": {}}}".to_vec(), 422, Some("request"), "invalid_field"),
        (half.to_string().into_bytes(), 422, Some("request.Ask.bytes"), "invalid_field"),
        (newer.to_string().into_bytes(), 422, Some("version"), "newer_version"),
    ] {
        refused(&peer.ask("POST", "/v1/grants", &body).await, status, field, Some(code));
    }
    let mut peer = port.with_token(Some(NEIGHBOUR_TOKEN)).await;
    refused(&peer.ask("POST", "/v1/grants", &vec![b' '; 70_000]).await, 413, None, None);
    assert!(calls.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_does_not_decide_is_503_and_not_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let (room, calls) = calls();
    let port = Port::start(&config(folder.path(), "story"), room).await;
    let answer = port.operator().await.ask("POST", "/v1/grants", &ask().to_json()).await;
    refused(&answer, 503, None, None);
    let Call::Grant(_, late) = calls.try_recv().unwrap() else { panic!("another call") };
    let lost = GrantAnswer::refused(RefusalReason::Busy);
    assert_eq!(late.send(lost.clone()), Err(lost), "the scheduler sees that nobody heard it");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_sees_that_whoever_asked_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (room, calls) = calls();
    let port = Port::start(&config(folder.path(), "story"), room).await;
    let mut peer = port.operator().await;
    peer.send("POST", "/v1/grants", &[super::world::JSON], &ask().to_json()).await;
    let call = tokio::task::spawn_blocking(move || calls.recv_timeout(PATIENCE).unwrap()).await.unwrap();
    let Call::Grant(_, mut reply) = call else { panic!("another call") };
    drop(peer);
    tokio::time::timeout(Duration::from_millis(1500), reply.closed())
        .await
        .expect("before its own patience ends");
}

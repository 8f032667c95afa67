//! Tests of `POST /v1/grants`: the scheduler's message and its reply.

use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;
use sluice_agent::peers::admin_call::AdminCall;
use sluice_agent::scheduler_handle::SchedulerMessage;
use sluice_wire::grants::{GrantAnswer, GrantRequest, Participant, RefusalReason};

use super::harness::{AdminPort, CHUNK, PEER_TOKEN, assert_refused, config};
use crate::gateway::client::TIMEOUT;

fn participant(name: &str) -> Participant {
    Participant { namespace: "default".into(), name: name.into(), index: 0, instance: 5 }
}

fn ask() -> GrantRequest {
    GrantRequest::Ask { borrower: participant("code"), nonce: 41, bytes: 2 * CHUNK, ttl_ms: 5000 }
}

fn calls() -> (impl FnMut(SchedulerMessage) + Send + 'static, mpsc::Receiver<AdminCall>) {
    let (sender, receiver) = mpsc::channel();
    let on_message = move |message| {
        if let SchedulerMessage::Admin(call) = message {
            drop(sender.send(call));
        }
    };
    (on_message, receiver)
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_request_and_answer_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let granted =
        GrantAnswer::Granted { nonce: 41, bytes: CHUNK, ttl_ms: 4000, lender: participant("story") };
    let answer = granted.clone();
    let on_message = move |message| {
        if let SchedulerMessage::Admin(AdminCall::Grant(request, reply)) = message {
            assert_eq!(request, ask());
            reply.send(answer.clone()).unwrap();
        }
    };
    let port = AdminPort::start(&config(folder.path(), "story"), on_message).await;
    let mut peer = port.with_token(Some(PEER_TOKEN)).await;
    let answer = peer.ask("POST", "/v1/grants", &ask().to_json()).await;
    assert_eq!(answer.head.status, 200);
    assert_eq!(GrantAnswer::from_json(answer.body.as_bytes(), &ask(), CHUNK).unwrap(), granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_without_loans_declines() {
    let folder = tempfile::tempdir().unwrap();
    let port = AdminPort::start_idle(folder.path(), "story").await;
    let answer = port.operator().await.ask("POST", "/v1/grants", &ask().to_json()).await;
    let answer = GrantAnswer::from_json(answer.body.as_bytes(), &ask(), CHUNK).unwrap();
    assert_eq!(answer, GrantAnswer::refused(RefusalReason::NotTraded));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_request_does_not_reach_scheduler() {
    let folder = tempfile::tempdir().unwrap();
    let (on_message, calls) = calls();
    let port = AdminPort::start(&config(folder.path(), "story"), on_message).await;
    let mut peer = port.with_token(Some(PEER_TOKEN)).await;
    let mut half: serde_json::Value = serde_json::from_slice(&ask().to_json()).unwrap();
    half["request"]["Ask"]["bytes"] = json!(CHUNK / 2);
    let mut newer = half.clone();
    newer["version"] = json!(3);
    for (body, status, field, code) in [
        (b"[".to_vec(), 400, None, "malformed_json"),
        (b"{\"version\": 1, \"request\": {\"Take\": {}}}".to_vec(), 422, Some("request"), "invalid_field"),
        (half.to_string().into_bytes(), 422, Some("request.Ask.bytes"), "invalid_field"),
        (newer.to_string().into_bytes(), 422, Some("version"), "newer_version"),
    ] {
        assert_refused(&peer.ask("POST", "/v1/grants", &body).await, status, field, Some(code));
    }
    let mut peer = port.with_token(Some(PEER_TOKEN)).await;
    assert_refused(&peer.ask("POST", "/v1/grants", &vec![b' '; 70_000]).await, 413, None, None);
    assert!(calls.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn undecided_scheduler_is_503() {
    let folder = tempfile::tempdir().unwrap();
    let (on_message, calls) = calls();
    let port = AdminPort::start(&config(folder.path(), "story"), on_message).await;
    let answer = port.operator().await.ask("POST", "/v1/grants", &ask().to_json()).await;
    assert_refused(&answer, 503, None, None);
    let AdminCall::Grant(_, late) = calls.try_recv().unwrap() else { panic!("another call") };
    let lost = GrantAnswer::refused(RefusalReason::Busy);
    assert_eq!(late.send(lost.clone()), Err(lost), "the scheduler sees that it was not received");
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_sees_disconnected_caller() {
    let folder = tempfile::tempdir().unwrap();
    let (on_message, calls) = calls();
    let port = AdminPort::start(&config(folder.path(), "story"), on_message).await;
    let mut peer = port.operator().await;
    peer.send("POST", "/v1/grants", &[super::harness::JSON], &ask().to_json()).await;
    let call = tokio::task::spawn_blocking(move || calls.recv_timeout(TIMEOUT).unwrap()).await.unwrap();
    let AdminCall::Grant(_, mut reply) = call else { panic!("another call") };
    drop(peer);
    tokio::time::timeout(Duration::from_millis(1500), reply.closed())
        .await
        .expect("before its own patience ends");
}

//! Requests and answers about grants.

use serde_json::{Value, json};
use sluice_wire::grants::{
    GrantAnswer, GrantMessage, GrantReply, GrantRequest, MAX_NONCES, MAX_TTL_MS, Participant, RefusalReason,
    RevokeReason, VERSION,
};
use sluice_wire::message::ReadError;

use super::golden;

const REQUESTS: &str = include_str!("../golden/grant-requests-v2.json");
const REQUESTS_V1: &str = include_str!("../golden/grant-requests-v1.json");
const ANSWERS: &str = include_str!("../golden/grant-answers-v2.json");
const ANSWERS_V1: &str = include_str!("../golden/grant-answers-v1.json");
const CHUNK: u64 = 65_536;

fn participant(name: &str, index: u32) -> Participant {
    Participant { namespace: "default".into(), name: name.into(), index, instance: 9_007_199_254_740_993 }
}

fn ask() -> GrantRequest {
    GrantRequest::Ask { borrower: participant("story", 1), nonce: 41, bytes: 8 * CHUNK, ttl_ms: 5_000 }
}

fn renew() -> GrantRequest {
    GrantRequest::Renew { borrower: participant("story", 1), nonces: vec![41, 42], ttl_ms: 5_000 }
}

fn revoke() -> GrantRequest {
    GrantRequest::Revoke {
        lender: participant("code", 0),
        nonce: 41,
        bytes: 4 * CHUNK,
        why: RevokeReason::LenderActive,
    }
}

fn cancel() -> GrantRequest {
    GrantRequest::Cancel { borrower: participant("story", 1), nonce: 41 }
}

fn requests() -> Vec<GrantRequest> {
    vec![ask(), renew(), revoke(), cancel()]
}

/// Every answer with the request that it belongs to.
fn answers() -> Vec<(GrantRequest, GrantAnswer)> {
    let granted =
        GrantAnswer::Granted { nonce: 41, bytes: 6 * CHUNK, ttl_ms: 4_000, lender: participant("code", 0) };
    let refused = |reason| (ask(), GrantAnswer::refused(reason));
    let mut all = vec![
        (ask(), granted),
        (renew(), GrantAnswer::Renewed { nonces: vec![42], ttl_ms: 5_000 }),
        (revoke(), GrantAnswer::Returning { nonce: 41, bytes: 4 * CHUNK, within_ms: 200 }),
        (revoke(), GrantAnswer::Returned { nonce: 41, bytes: CHUNK }),
        (cancel(), GrantAnswer::Cancelled { nonce: 41 }),
    ];
    all.extend(
        [
            RefusalReason::Active,
            RefusalReason::MinResidence,
            RefusalReason::AtCap,
            RefusalReason::AtFloor,
            RefusalReason::Nothing,
            RefusalReason::NotTraded,
            RefusalReason::UnknownPeer,
            RefusalReason::UnknownGrant,
            RefusalReason::Busy,
        ]
        .map(refused),
    );
    let later = GrantAnswer::Refused { reason: RefusalReason::MinResidence, after_ms: Some(350) };
    all.push((ask(), later));
    all
}

fn committed(text: &str) -> Vec<String> {
    let list: Vec<Value> = serde_json::from_str(text).expect("a committed list");
    list.iter().map(Value::to_string).collect()
}

#[test]
fn requests_are_written_and_read_as_committed() {
    let messages: Vec<_> =
        requests().into_iter().map(|request| GrantMessage { version: VERSION, request }).collect();
    golden::written_as(&messages, REQUESTS);
    for (text, request) in committed(REQUESTS).iter().zip(requests()) {
        assert_eq!(GrantRequest::from_json(text.as_bytes(), CHUNK).expect(text), request);
        assert_eq!(GrantRequest::from_json(&request.to_json(), CHUNK).expect("its own words"), request);
    }
}

#[test]
fn answers_are_written_and_read_as_committed() {
    let answer = |(_, answer)| GrantReply { version: VERSION, answer };
    golden::written_as(&answers().into_iter().map(answer).collect::<Vec<_>>(), ANSWERS);
    for (text, (request, answer)) in committed(ANSWERS).iter().zip(answers()) {
        assert_eq!(GrantAnswer::from_json(text.as_bytes(), &request, CHUNK).expect(text), answer);
        let own = GrantAnswer::from_json(&answer.to_json(), &request, CHUNK);
        assert_eq!(own.expect("its own words"), answer);
    }
}

#[test]
fn version_1_is_read() {
    for (text, request) in committed(REQUESTS_V1).iter().zip(requests()) {
        assert_eq!(GrantRequest::from_json(text.as_bytes(), CHUNK).expect(text), request);
    }
    for (text, (request, answer)) in committed(ANSWERS_V1).iter().zip(answers()) {
        assert_eq!(GrantAnswer::from_json(text.as_bytes(), &request, CHUNK).expect(text), answer);
    }
}

#[test]
fn a_newer_peer_may_add_fields_and_not_a_major() {
    let asked = &committed(REQUESTS)[0];
    for at in ["/added", "/request/Ask/added", "/request/Ask/borrower/added"] {
        let read = GrantRequest::from_json(&golden::with(asked, at, json!([1])), CHUNK);
        assert_eq!(read.expect(at), ask());
    }
    for text in [golden::with(asked, "/version", 3.into()), br#"{"version": 3, "ask": 1}"#.to_vec()] {
        let error = GrantRequest::from_json(&text, CHUNK).expect_err("newer");
        assert!(matches!(error, ReadError::NewerVersion { version: 3, known: 2 }), "{error}");
        let error = GrantAnswer::from_json(&text, &ask(), CHUNK).expect_err("newer");
        assert!(matches!(error, ReadError::NewerVersion { version: 3, known: 2 }), "{error}");
    }
}

#[test]
fn a_request_that_cannot_be_is_refused_by_its_field() {
    let texts = committed(REQUESTS);
    let many: Vec<u64> = (1..=MAX_NONCES as u64 + 1).collect();
    for (kind, field, value) in [
        (0, "Ask/bytes", json!(0)),
        (0, "Ask/bytes", json!(CHUNK + 1)),
        (0, "Ask/bytes", json!(-1)),
        (0, "Ask/ttl_ms", json!(0)),
        (0, "Ask/ttl_ms", json!(MAX_TTL_MS + 1)),
        (0, "Ask/nonce", json!(0)),
        (0, "Ask/borrower/instance", json!(0)),
        (0, "Ask/borrower/name", json!("a/b")),
        (0, "Ask/borrower/namespace", json!("")),
        (1, "Renew/nonces", json!([])),
        (1, "Renew/nonces", json!([1, 0])),
        (1, "Renew/nonces", json!(many)),
        (1, "Renew/ttl_ms", json!(0)),
        (2, "Revoke/bytes", json!(1)),
        (2, "Revoke/why", json!("Mood")),
        // A value that no sidecar sends.
        (2, "Revoke/why", json!("LenderLeaves")),
        (2, "Revoke/lender/index", json!(-1)),
        (3, "Cancel/nonce", json!(0)),
    ] {
        let text = golden::with(&texts[kind], &format!("/request/{field}"), value.clone());
        let error = GrantRequest::from_json(&text, CHUNK).expect_err(field);
        assert_eq!(error.field(), Some(&*format!("request.{}", field.replace('/', "."))), "{value}: {error}");
    }
    let unknown = br#"{"version": 1, "request": {"Steal": {}}}"#;
    assert_eq!(GrantRequest::from_json(unknown, CHUNK).expect_err("unknown").field(), Some("request"));
    assert!(GrantRequest::from_json(b"\xff", CHUNK).expect_err("no JSON").field().is_none());
}

#[test]
fn an_answer_must_belong_to_its_request() {
    let granted =
        |nonce, bytes| GrantAnswer::Granted { nonce, bytes, ttl_ms: 1, lender: participant("code", 0) };
    let returned = |nonce, bytes| GrantAnswer::Returned { nonce, bytes };
    let refused =
        |after_ms| GrantAnswer::Refused { reason: RefusalReason::MinResidence, after_ms: Some(after_ms) };
    for (answer, request, field) in [
        (granted(40, CHUNK), ask(), "answer.Granted.nonce"),
        (granted(41, 9 * CHUNK), ask(), "answer.Granted.bytes"),
        (granted(41, CHUNK - 1), ask(), "answer.Granted.bytes"),
        (granted(41, 0), ask(), "answer.Granted.bytes"),
        (GrantAnswer::Renewed { nonces: vec![43], ttl_ms: 1 }, renew(), "answer.Renewed.nonces"),
        (GrantAnswer::Renewed { nonces: vec![41], ttl_ms: 0 }, renew(), "answer.Renewed.ttl_ms"),
        (returned(42, CHUNK), revoke(), "answer.Returned.nonce"),
        (returned(41, 5 * CHUNK), revoke(), "answer.Returned.bytes"),
        (GrantAnswer::Returning { nonce: 41, bytes: 1, within_ms: 1 }, revoke(), "answer.Returning.bytes"),
        (GrantAnswer::Cancelled { nonce: 7 }, cancel(), "answer.Cancelled.nonce"),
        (refused(0), ask(), "answer.Refused.after_ms"),
        (refused(MAX_TTL_MS + 1), ask(), "answer.Refused.after_ms"),
        (granted(41, CHUNK), cancel(), "answer"),
        (returned(41, CHUNK), ask(), "answer"),
    ] {
        let error = GrantAnswer::from_json(&answer.to_json(), &request, CHUNK).expect_err(field);
        assert_eq!(error.field(), Some(field), "{answer:?}: {error}");
    }
    GrantAnswer::Renewed { nonces: vec![], ttl_ms: 1 }.check(&renew(), CHUNK).expect("nothing lives on");
}

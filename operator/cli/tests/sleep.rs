//! `sluice sleep` and `sluice wake` against an admin port of this process. The tests of `e2e` run them with real
//! sidecars.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::Query;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use sluice_wire::State;

use crate::support::{TestEnv, finish, serve};
use crate::top;

const MIB: u64 = 1 << 20;

/// The admin port of a tenant that uses 24 MiB of 32 MiB while it is awake, and none while it sleeps by `level`.
fn admin(level: &'static str) -> SocketAddr {
    let asleep = Arc::new(AtomicBool::new(false));
    let (slept, woken) = (asleep.clone(), asleep.clone());
    let state = move || async move {
        let mut state = State::default();
        state.memory.capacity_bytes = 32 * MIB;
        let used = if asleep.load(Ordering::SeqCst) { 0 } else { 24 * MIB };
        state.memory.owners.kv_bytes = used;
        state.memory.owners.free_bytes = 32 * MIB - used;
        Json(state)
    };
    let sleep = move |Query(query): Query<HashMap<String, String>>, headers: HeaderMap| async move {
        assert_eq!(headers["authorization"], "Bearer secret");
        assert_eq!(query["level"], level);
        slept.store(true, Ordering::SeqCst);
        StatusCode::OK
    };
    let wake = move |headers: HeaderMap| async move {
        assert_eq!(headers["authorization"], "Bearer secret");
        woken.store(false, Ordering::SeqCst);
        StatusCode::OK
    };
    let router = Router::new().route("/v1/state", get(state));
    serve(router.route("/sleep", post(sleep)).route("/wake_up", post(wake)))
}

/// An admin port that rejects both commands, of a sidecar that does not know its memory.
fn rejecting_admin() -> SocketAddr {
    let refuse = || async {
        let error = json!({"error": {"message": "the tenant has not loaded", "code": "not_now"}});
        (StatusCode::CONFLICT, Json(error))
    };
    let router = Router::new().route("/v1/state", get(|| async { Json(State::default()) }));
    serve(router.route("/sleep", post(refuse)).route("/wake_up", post(refuse)))
}

#[test]
fn a_tenant_sleeps_and_wakes_and_its_bytes_are_printed() {
    let world = TestEnv::new();
    let _chat = top::tenant(&world, "chat", admin("1"), "secret");
    let lines = [
        (&["sleep", "chat"], "default/chat is asleep: 24 MiB freed\n"),
        (&["sleep", "default/chat"], "default/chat is asleep\n"),
        (&["wake", "tenant/chat"], "default/chat is awake\n"),
    ];
    for (args, line) in lines {
        let outcome = finish(world.sluice(args));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), line), "{}", outcome.stderr);
    }
}

#[test]
fn a_level_is_passed_on_and_an_unknown_one_is_a_wrong_argument() {
    let world = TestEnv::new();
    let _chat = top::tenant(&world, "chat", admin("2"), "secret");
    assert_eq!(finish(world.sluice(&["sleep", "chat", "--level", "2"])).code, Some(0));
    let wrong = finish(world.sluice(&["sleep", "chat", "--level", "3"]));
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("--level"), "{}", wrong.stderr);
}

#[test]
fn a_refusal_names_the_tenant_and_the_reason() {
    let world = TestEnv::new();
    let _chat = top::tenant(&world, "chat", rejecting_admin(), "secret");
    for (command, problem) in [("sleep", "could not be put to sleep"), ("wake", "could not be woken")] {
        let outcome = finish(world.sluice(&[command, "chat"]));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
        let reason = format!("default/chat {problem}: the tenant has not loaded");
        assert!(outcome.stderr.contains(&reason), "{}", outcome.stderr);
    }
}

#[test]
fn tenant_not_running_is_named_with_running_ones() {
    let world = TestEnv::new();
    let _chat = top::tenant(&world, "chat", admin("1"), "secret");
    for command in ["sleep", "wake"] {
        let outcome = finish(world.sluice(&[command, "code"]));
        assert_eq!(outcome.code, Some(1));
        let reason = "no tenant `code` runs on this machine (running: default/chat); `sleep` and `wake` \
                      work only for tenants of this machine; in a cluster, set \
                      spec.idle.hibernateAfterSeconds";
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
    }
}

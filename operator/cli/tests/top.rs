//! `sluice top --once` against admin ports of this process.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use sluice_cli::runtime_dir::{LockedDir, RuntimeDir};
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;
use sluice_wire::state::{Phase, VERSION};

use crate::support::{ProcessOutput, TestEnv, finish, serve};

/// A state whose clock and token count advance with each request: 100 tokens in half a second.
pub fn admin(name: &'static str) -> SocketAddr {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let answer = move |headers: HeaderMap| async move {
        if headers.get("authorization").is_none_or(|value| value != "Bearer secret") {
            return Err(StatusCode::UNAUTHORIZED);
        }
        let asked = ASKED.fetch_add(1, Ordering::SeqCst);
        let mut state = State { at_unix_ms: 1_000 + asked * 500, phase: Phase::Active, ..State::default() };
        (state.tenant.namespace, state.tenant.name) = ("default".into(), name.into());
        state.tenant.gpu = "gpu-0".into();
        state.figures.decode_tokens_total = asked * 100;
        (state.memory.chunk_bytes, state.memory.capacity_bytes) = (1 << 16, 1 << 22);
        state.memory.owners.free_bytes = 1 << 22;
        Ok(Json(state))
    };
    serve(axum::Router::new().route("/v1/state", get(answer)))
}

/// A tenant that appears to run.
pub fn tenant(world: &TestEnv, name: &str, admin: SocketAddr, token: &str) -> LockedDir {
    let folder = RuntimeDir::open(Some(&world.path("run"))).unwrap().claim("default", name).unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, format!("{token}\n")).unwrap();
    let record = SidecarRecord {
        namespace: "default".into(),
        name: name.into(),
        pid: 1,
        serve: admin,
        admin,
        probes: admin,
        token_file,
        gpu: "gpu-0".into(),
    };
    std::fs::write(folder.path().join("sidecar.json"), serde_json::to_vec(&record).unwrap()).unwrap();
    folder
}

/// Returns a port without a listener.
fn unused_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn json_is_an_array_of_states() {
    let world = TestEnv::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    for args in [&["top", "--once", "--json"][..], &["top", "--json"]] {
        let outcome = finish(world.sluice(args));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
        let states: Vec<State> = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((states.len(), states[0].tenant.name.as_str(), states[0].version), (1, "story", VERSION));
    }
}

#[test]
fn nothing_running_is_an_empty_array() {
    let outcome = finish(TestEnv::new().sluice(&["top", "--once", "--json"]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "[]\n"));
}

#[test]
fn text_shows_every_sidecar_and_a_rate_from_two_looks() {
    let world = TestEnv::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    let _gone = tenant(&world, "gone", unused_address(), "secret");
    let _locked = tenant(&world, "locked", admin("locked"), "wrong");
    let outcome = finish(world.sluice(&["top", "--once"]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let line = |start: &str| {
        let found = outcome.stdout.lines().find(|line| line.trim_start().starts_with(start));
        found.unwrap_or_else(|| panic!("{start}: {}", outcome.stdout)).to_owned()
    };
    assert_eq!(line("sluice top"), "sluice top   3 tenants, 2 without an answer");
    let row = line("default/story");
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[..4], ["default/story", "active", "0+0", "200"], "{row}");
    assert!(line("default/gone").contains("no answer: "), "{}", outcome.stdout);
    assert!(line("default/locked").ends_with("GET /v1/state: 401 Unauthorized"), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains('\u{1b}'), "no escapes in text");
}

#[test]
fn json_omits_unreachable_sidecar_with_warning() {
    let world = TestEnv::new();
    let _gone = tenant(&world, "gone", unused_address(), "secret");
    let _story = tenant(&world, "story", admin("story"), "secret");
    let outcome = finish(world.sluice(&["top", "--once", "--json"]));
    assert_eq!(outcome.code, Some(1));
    let states: Vec<State> = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(states.len(), 1);
    assert!(outcome.stderr.starts_with("sluice: default/gone: "), "{}", outcome.stderr);
    assert!(outcome.stderr.ends_with("1 of 2 sidecars did not answer\n"), "{}", outcome.stderr);
}

#[test]
fn newer_sidecar_version_is_rejected() {
    let world = TestEnv::new();
    let answer = || async { Json(serde_json::json!({"version": VERSION + 1})) };
    let admin = serve(axum::Router::new().route("/v1/state", get(answer)));
    let _new = tenant(&world, "new", admin, "secret");
    let outcome = finish(world.sluice(&["top", "--once"]));
    assert!(outcome.stdout.contains("update the program"), "{}", outcome.stdout);
}

#[test]
fn without_a_terminal_it_prints_one_picture() {
    let world = TestEnv::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    let outcome = finish(world.sluice(&["top"]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert!(outcome.stdout.starts_with("sluice top   1 tenant\n"), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains('\u{1b}'), "no escapes in text");
}

#[test]
fn closed_pipe_is_not_a_failure() {
    let world = TestEnv::new();
    let _story = tenant(&world, "story", admin("story"), "secret");
    for args in [&["top", "--once"][..], &["top", "--once", "--json"]] {
        let mut command = world.sluice(args);
        let mut top = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(top.stdout.take());
        let outcome = ProcessOutput::from_output(top.wait_with_output().unwrap());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

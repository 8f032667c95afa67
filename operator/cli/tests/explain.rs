//! `sluice explain` against an API server and an admin port of this process.

use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};
use sluice_wire::State;
use sluice_wire::state::{Phase, SharingState, TimeSliceState};

use crate::support::{TestEnv, finish, serve};
use crate::top;

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
           "lastTransitionTime": "2023-11-14T22:13:20Z"})
}

fn tenant() -> Value {
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelTenant",
        "metadata": {"name": "chat", "namespace": "team", "uid": "u-1", "generation": 1},
        "spec": {"poolRef": {"name": "p"},
                 "model": {"source": {"type": "HuggingFace", "huggingFace": {"repo": "a/b"}}}},
        "status": {"observedGeneration": 1, "conditions": [
            condition("Ready", "False", "Unschedulable", "Placed: slot 0: no room on 2 GPUs")]},
    })
}

fn events(about: &str) -> Value {
    assert_eq!(about, "regarding.kind=ModelTenant,regarding.uid=u-1");
    json!({"kind": "EventList", "apiVersion": "events.k8s.io/v1", "metadata": {}, "items": [{
        "metadata": {"name": "e"}, "eventTime": "2023-11-14T22:13:20.000000Z", "type": "Warning",
        "reason": "Unschedulable", "note": "no GPU has room", "action": "Place",
        "reportingController": "sluice.dev/operator", "reportingInstance": "o",
        "regarding": {"kind": "ModelTenant", "name": "chat"},
    }]})
}

/// An environment with the kubeconfig of an API server that has one tenant and no operator.
fn cluster_env() -> TestEnv {
    let missing = || async {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                            "reason": "NotFound", "message": "not found"});
        (StatusCode::NOT_FOUND, axum::Json(status))
    };
    let list_events = |Query(query): Query<Vec<(String, String)>>| async move {
        let about =
            query.iter().find(|(name, _)| name == "fieldSelector").expect("all events were asked for");
        axum::Json(events(&about.1))
    };
    let api = Router::new()
        .route(
            "/apis/sluice.dev/v1alpha1/namespaces/team/modeltenants/chat",
            get(|| async { axum::Json(tenant()) }),
        )
        .route("/apis/events.k8s.io/v1/namespaces/team/events", get(list_events))
        .fallback(missing);
    let server = serve(api);
    TestEnv::with_cluster(server)
}

#[test]
fn without_an_operator_conditions_and_events_explain() {
    let world = cluster_env();
    let mut command = world.command(env!("CARGO_BIN_EXE_kubectl-sluice"), &["explain", "tenant/chat"]);
    command.env("KUBECONFIG", world.path("kubeconfig"));
    let outcome = finish(command);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for line in [
        "team/chat is not ready: Unschedulable: Placed: slot 0: no room on 2 GPUs",
        "What to do: add GPUs to the pool",
        "The states of its sidecars could not be read: no operator is the leader: Lease \
         sluice-system/sluice-operator has no holder",
        "warning Unschedulable: no GPU has room",
    ] {
        assert!(outcome.stdout.contains(line), "{line}\n{}", outcome.stdout);
    }
}

#[test]
fn a_tenant_that_is_not_there_is_named_with_its_namespace() {
    let world = cluster_env();
    let file = world.path("kubeconfig");
    let outcome = finish(world.sluice(&["explain", "other", "--kubeconfig", file.to_str().unwrap()]));
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("no ModelTenant `other` in namespace `team`"), "{}", outcome.stderr);
}

#[test]
fn top_without_operator_names_lease_and_namespace() {
    let world = cluster_env();
    let file = world.path("kubeconfig");
    let outcome = finish(world.sluice(&["top", "--once", "--kubeconfig", file.to_str().unwrap()]));
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("Lease sluice-system/sluice-operator"), "{}", outcome.stderr);
}

#[test]
fn tenant_not_running_locally_gets_cluster_hint() {
    let outcome = finish(TestEnv::new().sluice(&["explain", "chat"]));
    assert_eq!(outcome.code, Some(1));
    let said = "no tenant `chat` runs on this machine (no tenant runs); in a cluster: kubectl sluice explain";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
}

/// The admin port of `default/chat`, which waits for the time slice that `holder` does not release.
fn waiting_tenant_admin(holder: &'static str) -> std::net::SocketAddr {
    let answer = move || async move {
        let holder = Some(holder.to_owned());
        let time_slice =
            Some(TimeSliceState { holder, holder_overdue_ms: 1_500, ..TimeSliceState::default() });
        let peers = Some(SharingState { time_slice, ..SharingState::default() });
        let mut state = State { phase: Phase::Active, peers, ..State::default() };
        (state.tenant.namespace, state.tenant.name) = ("default".into(), "chat".into());
        state.queue.running = 1;
        axum::Json(state)
    };
    serve(Router::new().route("/v1/state", get(answer)))
}

#[test]
fn peer_explains_stopped_sidecar_and_waiting_tenant_names_it() {
    let world = TestEnv::new();
    // The kernel accepts connections to it, and no process answers, as with a stopped process.
    let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _code = top::tenant(&world, "code", stopped.local_addr().unwrap(), "secret");
    let _chat = top::tenant(&world, "chat", waiting_tenant_admin("default/code"), "secret");
    let of = |name: &str| {
        let outcome = finish(world.sluice(&["explain", name]));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout
    };
    let culprit = of("code");
    assert!(culprit.starts_with("default/code does not answer: "), "{culprit}");
    let expected =
        "default/code holds the time slice and is 1500 ms past its deadline, as default/chat reports.";
    assert!(culprit.contains(expected), "{culprit}");
    let victim = of("chat");
    let expected = "It waits for the time slice, which default/code holds and is 1500 ms past its deadline.";
    assert!(victim.contains(expected), "{victim}");
}

#[test]
fn unreachable_sidecar_unknown_to_peers_is_an_error() {
    let world = TestEnv::new();
    let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _code = top::tenant(&world, "code", stopped.local_addr().unwrap(), "secret");
    let _chat = top::tenant(&world, "chat", waiting_tenant_admin("default/mail"), "secret");
    let outcome = finish(world.sluice(&["explain", "code"]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{}", outcome.stderr);
}

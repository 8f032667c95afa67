//! `sluice explain` against an API server of this process, and against an admin port of it.

use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};
use sluice_wire::State;
use sluice_wire::state::{Neighbourhood, Phase, TurnState};

use crate::support::{World, finish, serve};
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
            condition("Ready", "False", "NoRoom", "Placed: slot 0: no room on 2 GPUs")]},
    })
}

fn events(about: &str) -> Value {
    assert_eq!(about, "regarding.kind=ModelTenant,regarding.uid=u-1");
    json!({"kind": "EventList", "apiVersion": "events.k8s.io/v1", "metadata": {}, "items": [{
        "metadata": {"name": "e"}, "eventTime": "2023-11-14T22:13:20.000000Z", "type": "Warning",
        "reason": "NoRoom", "note": "no GPU has room", "action": "Place",
        "reportingController": "sluice.dev/operator", "reportingInstance": "o",
        "regarding": {"kind": "ModelTenant", "name": "chat"},
    }]})
}

/// A world with the kubeconfig of an API server that has one tenant, and no operator.
fn cluster() -> World {
    let missing = || async {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                            "reason": "NotFound", "message": "not found"});
        (StatusCode::NOT_FOUND, axum::Json(status))
    };
    let told = |Query(query): Query<Vec<(String, String)>>| async move {
        let about =
            query.iter().find(|(name, _)| name == "fieldSelector").expect("all events were asked for");
        axum::Json(events(&about.1))
    };
    let api = Router::new()
        .route(
            "/apis/sluice.dev/v1alpha1/namespaces/team/modeltenants/chat",
            get(|| async { axum::Json(tenant()) }),
        )
        .route("/apis/events.k8s.io/v1/namespaces/team/events", get(told))
        .fallback(missing);
    let server = serve(api);
    World::with_cluster(server)
}

#[test]
fn without_an_operator_conditions_and_events_explain() {
    let world = cluster();
    let mut command = world.command(env!("CARGO_BIN_EXE_kubectl-sluice"), &["explain", "tenant/chat"]);
    command.env("KUBECONFIG", world.path("kubeconfig"));
    let outcome = finish(command);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for line in [
        "team/chat is not ready: NoRoom: Placed: slot 0: no room on 2 GPUs",
        "To mend it: add GPUs to the pool",
        "Its sidecars cannot be seen: no operator leads: Lease sluice-system/sluice-operator has no holder",
        "warning NoRoom: no GPU has room",
    ] {
        assert!(outcome.stdout.contains(line), "{line}\n{}", outcome.stdout);
    }
}

#[test]
fn a_tenant_that_is_not_there_is_named_with_its_namespace() {
    let world = cluster();
    let file = world.path("kubeconfig");
    let outcome = finish(world.sluice(&["explain", "other", "--kubeconfig", file.to_str().unwrap()]));
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("no ModelTenant `other` in namespace `team`"), "{}", outcome.stderr);
}

#[test]
fn top_of_a_cluster_without_an_operator_says_where_it_looked() {
    let world = cluster();
    let file = world.path("kubeconfig");
    let outcome = finish(world.sluice(&["top", "--once", "--kubeconfig", file.to_str().unwrap()]));
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("Lease sluice-system/sluice-operator"), "{}", outcome.stderr);
}

#[test]
fn a_tenant_that_does_not_run_here_is_told_with_the_way_into_a_cluster() {
    let outcome = finish(World::new().sluice(&["explain", "chat"]));
    assert_eq!(outcome.code, Some(1));
    let said = "no tenant `chat` runs on this machine (none runs); in a cluster: kubectl sluice explain";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
}

/// The admin port of `default/chat`, who waits for the turn that `holder` does not give up.
fn victim(holder: &'static str) -> std::net::SocketAddr {
    let answer = move || async move {
        let holder = Some(holder.to_owned());
        let turn = Some(TurnState { holder, holder_overdue_ms: 1_500, ..TurnState::default() });
        let neighbourhood = Some(Neighbourhood { turn, ..Neighbourhood::default() });
        let mut state = State { phase: Phase::Active, neighbourhood, ..State::default() };
        (state.tenant.namespace, state.tenant.name) = ("default".into(), "chat".into());
        state.queue.running = 1;
        axum::Json(state)
    };
    serve(Router::new().route("/v1/state", get(answer)))
}

#[test]
fn of_a_stopped_sidecar_its_neighbour_tells_and_a_victim_names_it() {
    let world = World::new();
    // The kernel takes connections to it, and nothing ever answers: as a stopped process.
    let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _code = top::tenant(&world, "code", stopped.local_addr().unwrap(), "secret");
    let _chat = top::tenant(&world, "chat", victim("default/code"), "secret");
    let of = |name: &str| {
        let outcome = finish(world.sluice(&["explain", name]));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout
    };
    let culprit = of("code");
    assert!(culprit.starts_with("default/code does not answer: "), "{culprit}");
    let told = "default/code holds the turn and is 1500 ms past its deadline, as default/chat tells.";
    assert!(culprit.contains(told), "{culprit}");
    let victim = of("chat");
    let told = "It waits for the turn, which default/code holds and is 1500 ms past its deadline.";
    assert!(victim.contains(told), "{victim}");
}

#[test]
fn a_sidecar_that_does_not_answer_and_that_no_neighbour_names_is_an_error() {
    let world = World::new();
    let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _code = top::tenant(&world, "code", stopped.local_addr().unwrap(), "secret");
    let _chat = top::tenant(&world, "chat", victim("default/mail"), "secret");
    let outcome = finish(world.sluice(&["explain", "code"]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{}", outcome.stderr);
}

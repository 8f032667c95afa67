//! Tests how the leader handles the reports of a sidecar: the leader that it follows, and its state.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};
use sluice_e2e::cluster::eventually;
use sluice_operator::credentials::ca::CaBundle;
use sluice_types::ModelTenant;
use sluice_wire::state::{GpuState, Phase, State, TenantReport};

use super::stub::{StubSidecar, now};
use super::test_namespace::{OperatorProcess, TestNamespace};

/// Epoch and sequence of a directive.
type FencePair = (u64, u64);
/// Received pairs, in order.
type ReceivedPairs = Arc<Mutex<Vec<FencePair>>>;

/// Starts an operator whose only sidecar accepts the directives that `judge` accepts (true = it accepts this pair, or
/// has it). The sidecar reports the result of `says` as its state; `None` = it does not answer.
async fn operator_with_sidecar(
    stage: &TestNamespace,
    flags: &[&str],
    mut says: impl FnMut() -> Option<GpuState> + Send + 'static,
    mut judge: impl FnMut(FencePair) -> (bool, FencePair) + Send + 'static,
) -> (OperatorProcess, ReceivedPairs) {
    let authorities = CaBundle::generate(now()).unwrap();
    let data: BTreeMap<_, _> =
        authorities.to_secret().into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?))).collect();
    let metadata = json!({"name": "sluice-authority"});
    let secret: Secret = serde_json::from_value(json!({"metadata": metadata, "stringData": data})).unwrap();
    stage.create(&secret).await;
    let came = ReceivedPairs::default();
    let kept = came.clone();
    let stub = StubSidecar::start_in_namespace(&authorities, &stage.namespace, "t", move |request| {
        if !request.line.starts_with("PUT") {
            let unknown = || StatusCode::SERVICE_UNAVAILABLE.into_response();
            return says().map_or_else(unknown, |said| Json(said).into_response());
        }
        let sent: Value = serde_json::from_str(&request.body).unwrap();
        let pair = (sent["epoch"].as_u64().unwrap(), sent["sequence"].as_u64().unwrap());
        kept.lock().unwrap().push(pair);
        answer(judge(pair))
    });
    let port = stub.await.address.admin_addr.port().to_string();
    let of_sidecars = ["--sidecar-port", &port, "--poll-seconds", "1"];
    let operator = stage.operator("one", &[&of_sidecars, flags].concat());
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    let node = stage.node("a").await;
    let deployments = stage.api::<Deployment>();
    eventually("a Deployment", async || deployments.get_opt("t-0").await.unwrap()).await;
    stage.allocate("p-chat-0-e1", &node).await;
    stage.pod("t-0", "t-0-pod").await;
    stage.bind_pod("t-0-pod", &node).await;
    stage.set_pod_address("t-0-pod", "127.0.0.1", "True").await;
    (operator, came)
}

fn answer((takes, (epoch, sequence)): (bool, FencePair)) -> Response {
    let status = if takes { StatusCode::OK } else { StatusCode::CONFLICT };
    (status, Json(json!({"current": {"epoch": epoch, "sequence": sequence}}))).into_response()
}

/// Returns the state of the tenant `t` with the fields that the operator reads.
fn tenant_state(stage: &TestNamespace) -> State {
    let mut state = State::default();
    (state.tenant.namespace, state.tenant.name) = (stage.namespace.clone(), "t".to_owned());
    // A tenant that loads is read seldom after a while.
    state.phase = Phase::Active;
    state
}

/// Returns the state of a GPU with no other tenant.
fn single_tenant_gpu(state: &State) -> GpuState {
    GpuState { tenants: vec![TenantReport::State(Box::new(state.clone()))], ..GpuState::default() }
}

async fn lease_transitions(stage: &TestNamespace) -> Option<i32> {
    stage.api::<Lease>().get("sluice-operator").await.unwrap().spec?.lease_transitions
}

#[tokio::test]
async fn sidecar_claiming_newer_leader_does_not_stop_operator() {
    let Some(stage) = TestNamespace::try_new("liar").await else { return };
    let (mut operator, came) =
        operator_with_sidecar(&stage, &[], || None, |(epoch, _)| (false, (epoch + 1, 1))).await;
    let condition = stage.condition("t", "Degraded", "True", "DirectiveNotTaken").await;
    assert!(condition.message.contains("the sidecar follows a newer leader"), "{}", condition.message);
    assert!(!operator.has_ended());
    let epochs: Vec<u64> = came.lock().unwrap().iter().map(|(epoch, _)| *epoch).collect();
    assert!(epochs.len() >= 4 && epochs[0] == 1 && epochs[1..].iter().all(|epoch| *epoch == 3), "{epochs:?}");
    assert_eq!(lease_transitions(&stage).await, Some(3));
    assert_eq!(operator.metric("sluice_operator_leader", &[]).await, Some(1.0));
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn sidecar_with_epoch_before_lease_receives_directive() {
    let Some(stage) = TestNamespace::try_new("known").await else { return };
    let mut has = (37, 5);
    let (mut operator, came) = operator_with_sidecar(
        &stage,
        &[],
        || None,
        move |pair| {
            let newer = pair > has;
            has = if newer { pair } else { has };
            (newer, has)
        },
    )
    .await;
    eventually("it has its directive", async || {
        came.lock().unwrap().last().is_some_and(|pair| pair.0 == 38).then_some(())
    })
    .await;
    assert_eq!(lease_transitions(&stage).await, Some(38));
    stage.condition("t", "Degraded", "False", "AsExpected").await;
    assert!(!operator.has_ended());
    operator.kill();
    let _next = stage.operator("two", &[]);
    eventually("the next leader", async || (stage.leader().await? == "two").then_some(())).await;
    assert_eq!(lease_transitions(&stage).await, Some(39));
}

#[tokio::test]
async fn report_of_replaced_pod_is_not_used_for_successor() {
    let Some(stage) = TestNamespace::try_new("successor").await else { return };
    let mut state = tenant_state(&stage);
    (state.phase, state.engine.failure) = (Phase::Failed, Some("it has lost nine engines".into()));
    let said = single_tenant_gpu(&state);
    let (operator, _) =
        operator_with_sidecar(&stage, &[], move || Some(said.clone()), |pair| (true, pair)).await;
    let condition = stage.condition("t", "Serving", "False", "PodFailing").await;
    assert!(condition.message.contains("it has lost nine engines"), "{}", condition.message);

    stage.terminate_pod("t-0-pod").await;
    stage.condition("t", "Serving", "False", "PodNotReady").await;
    stage.pod("t-0", "t-0-next").await;
    stage.bind_pod("t-0-next", &format!("{}-a", stage.namespace)).await;
    // An address without a listener.
    stage.set_pod_address("t-0-next", "127.0.0.2", "True").await;
    stage.condition("t", "Serving", "True", "AsExpected").await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn changing_figures_are_written_at_status_interval() {
    let Some(stage) = TestNamespace::try_new("figures").await else { return };
    let (asked, mut state) = (Arc::new(AtomicU64::new(0)), tenant_state(&stage));
    let counted = asked.clone();
    let says = move || {
        state.memory.owners.kv_bytes = counted.fetch_add(1, Ordering::Relaxed) << 20;
        Some(single_tenant_gpu(&state))
    };
    let seldom = ["--status-seconds", "3"];
    let (operator, _) = operator_with_sidecar(&stage, &seldom, says, |pair| (true, pair)).await;
    stage.condition("t", "Serving", "True", "AsExpected").await;
    let figures = async || stage.api::<ModelTenant>().get("t").await.unwrap().status?.memory;
    let known = eventually("figures", &figures).await;
    eventually("other ones", async || (figures().await? != known).then_some(())).await;

    let writes = || {
        let all = stage.writes();
        all.into_iter().filter(|write| write.contains("modeltenants/t/status")).collect::<Vec<_>>()
    };
    let (before, readings, begun) = (writes().len(), asked.load(Ordering::Relaxed), Instant::now());
    let nine = async || (asked.load(Ordering::Relaxed) >= readings + 9).then_some(());
    eventually("nine more readings", nine).await;
    let (writes, most) = (writes().split_off(before), begun.elapsed().as_secs() / 3 + 1);
    assert!((1..=most).contains(&(writes.len() as u64)), "at most {most}: {writes:#?}\n{}", operator.log());
}

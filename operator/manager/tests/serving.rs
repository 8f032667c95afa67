//! Tests a tenant from its creation until it serves, and after that.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use sluice_e2e::cluster::eventually;
use sluice_types::{GpuPool, ModelTenant};

use super::fakes::geometry_report;
use super::test_namespace::TestNamespace;

#[tokio::test]
async fn tenant_startup_reports_each_step() {
    let Some(stage) = TestNamespace::try_new("steps").await else { return };
    let operator = stage.operator("one", &[]);
    let tenant = stage.tenant("t", json!({})).await;
    let refused = stage.condition("t", "Accepted", "False", "PoolNotFound").await;
    assert_eq!(refused.message, "spec.poolRef: no GpuPool `p` in this namespace");
    // The first status has all conditions.
    let status = stage.api::<ModelTenant>().get("t").await.unwrap().status.unwrap();
    let kinds: Vec<_> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    let all = ["Accepted", "Placed", "DevicesAllocated", "WeightsLoaded", "Serving", "Degraded", "Ready"];
    assert_eq!(kinds, all);
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(1)));

    let pool = stage.pool(json!({})).await;
    stage.condition("t", "Accepted", "True", "AsExpected").await;
    stage.condition("t", "Placed", "Unknown", "ModelNotInspected").await;
    stage.finish_inspection("t", &geometry_report(8)).await;
    stage.condition("t", "Placed", "True", "AsExpected").await;
    let model = stage.api::<ModelTenant>().get("t").await.unwrap().status.unwrap().model.unwrap();
    assert_eq!((model.layers, model.weights_bytes), (8, 9 << 20));
    let jobs = stage.api::<k8s_openapi::api::batch::v1::Job>();
    eventually("the Job is gone", async || jobs.get_opt("t-inspect").await.unwrap().is_none().then_some(()))
        .await;
    stage.condition("t", "DevicesAllocated", "Unknown", "NotAllocated").await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;

    let node = stage.node("a").await;
    stage.allocate("p-chat-0-e1", &node).await;
    stage.condition("t", "DevicesAllocated", "True", "AsExpected").await;
    stage.pod("t-0", "t-0-pod").await;
    stage.condition("t", "WeightsLoaded", "Unknown", "PodNotReady").await;
    stage.start_pod("t-0-pod", &node).await;
    stage.condition("t", "Serving", "True", "AsExpected").await;
    stage.condition("t", "Ready", "True", "AsExpected").await;

    let status = stage.api::<ModelTenant>().get("t").await.unwrap().status.unwrap();
    assert_eq!(status.url.as_deref(), Some(format!("http://t.{}.svc:8000", stage.namespace).as_str()));
    assert_eq!(
        (status.replicas, status.selector.as_deref()),
        (1, Some("app.kubernetes.io/component=slot,sluice.dev/tenant=t"))
    );
    let slot = &status.slots[0];
    let placed = (slot.gpu.as_deref(), slot.node.as_deref(), slot.pod.as_deref());
    assert_eq!(placed, (Some("p-chat-0"), Some(node.as_str()), Some("t-0-pod")));

    // Children are owned by their tenant or pool, and are deleted with it.
    let owner = |references: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference]| {
        (references[0].uid.clone(), references[0].controller)
    };
    let deployment = stage.api::<Deployment>().get("t-0").await.unwrap();
    assert_eq!(owner(deployment.owner_references()), (tenant.uid().unwrap(), Some(true)));
    let claim =
        stage.api::<k8s_openapi::api::resource::v1::ResourceClaim>().get("p-chat-0-e1").await.unwrap();
    assert_eq!(owner(claim.owner_references()), (pool.uid().unwrap(), Some(true)));

    let pool = eventually("the pool's status", async || {
        let status = stage.api::<GpuPool>().get("p").await.unwrap().status?;
        status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True").then_some(status)
    })
    .await;
    let bound = (pool.gpus[0].claim_name.as_deref(), pool.gpus[0].node.as_deref(), &pool.gpus[0].tenants);
    assert_eq!(bound, (Some("p-chat-0-e1"), Some(node.as_str()), &vec!["t".to_owned()]));
    assert_eq!(pool.gpus[1].claim_name, None);
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn unreadable_model_is_reported_and_retried() {
    let Some(stage) = TestNamespace::try_new("unread").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    let refusal = json!({"version": 1, "refusal": {"reason": "Unreadable", "message": "no folder /model"}});
    stage.finish_inspection("t", &refusal).await;
    let accepted = stage.condition("t", "Accepted", "False", "ModelUnreadable").await;
    assert_eq!(accepted.message, "spec.model: no folder /model");
    stage.condition("t", "Placed", "False", "InspectionFailed").await;
    // The Job and its pod are deleted after a while; the result stays, and another Job inspects again.
    stage.delete::<k8s_openapi::api::batch::v1::Job>("t-inspect").await;
    stage.terminate_pod("t-inspect-pod").await;
    stage.finish_inspection("t", &geometry_report(8)).await;
    stage.condition("t", "Accepted", "True", "AsExpected").await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn steady_state_and_restart_write_nothing() {
    let Some(stage) = TestNamespace::try_new("rest").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    let node = stage.node("a").await;
    stage.serve_tenant("t", &node).await;
    let before = stage.wait_until_idle().await;
    // The same spec again, as `kubectl apply` sends it.
    stage.update_spec::<ModelTenant>("t", json!({"replicas": 1})).await;
    operator.kill();
    let again = stage.operator("one", &[]);
    eventually("the second life has looked at everything", async || {
        let seconds = again.metric("sluice_operator_looked_seconds", &[]).await?;
        (seconds > 0.0).then_some(())
    })
    .await;
    let after = stage.wait_until_idle().await;
    assert_eq!(stage.writes()[before..after], [""; 0], "{}", again.log());
}

#[tokio::test]
async fn changed_or_deleted_children_are_restored() {
    let Some(stage) = TestNamespace::try_new("drift").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    stage.wait_until_idle().await;

    let deployments = stage.api::<Deployment>();
    let edit = PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
    deployments.patch("t-0", &edit, &Patch::Merge(json!({"spec": {"replicas": 3}}))).await.unwrap();
    let replicas = async || deployments.get("t-0").await.unwrap().spec?.replicas;
    eventually("one pod again", async || (replicas().await == Some(1)).then_some(())).await;

    let services = stage.api::<Service>();
    let taken = json!({"spec": {"selector": {"sluice.dev/tenant": null}}});
    services.patch("t", &edit, &Patch::Merge(taken)).await.unwrap();
    let selector =
        async || services.get("t").await.unwrap().spec?.selector?.get("sluice.dev/tenant").cloned();
    eventually("the selector again", async || (selector().await? == "t").then_some(())).await;

    stage.delete::<Service>("t").await;
    eventually("the Service again", async || services.get_opt("t").await.unwrap()).await;
    // Foreign fields stay, and are no reason for endless writes.
    let mine = json!({"metadata": {"annotations": {"example.org/mine": "1"}}});
    services.patch("t", &edit, &Patch::Merge(mine)).await.unwrap();
    let before = stage.wait_until_idle().await;
    assert_eq!(services.get("t").await.unwrap().annotations()["example.org/mine"], "1");
    assert!(stage.wait_until_idle().await <= before + 1, "{:?}", stage.writes());
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn foreign_objects_are_not_adopted() {
    let Some(stage) = TestNamespace::try_new("foreign").await else { return };
    let _operator = stage.operator("one", &[]);
    let foreign = json!({"metadata": {"name": "t"}, "spec": {"ports": [{"port": 80}]}});
    stage.create::<Service>(&serde_json::from_value(foreign).unwrap()).await;
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    let degraded = stage.condition("t", "Degraded", "True", "NameTaken").await;
    assert!(
        degraded.message.starts_with("Service t exists and the operator does not own it"),
        "{}",
        degraded.message
    );
    // Its clients reach another backend, whatever its pods do.
    for kind in ["Serving", "Ready"] {
        stage.condition("t", kind, "False", "NameTaken").await;
    }
    assert_eq!(stage.api::<ModelTenant>().get("t").await.unwrap().status.unwrap().url, None);
    let kept = stage.api::<Service>().get("t").await.unwrap();
    assert_eq!((kept.owner_references().len(), kept.spec.unwrap().ports.unwrap()[0].port), (0, 80));
    stage.delete::<Service>("t").await;
    stage.condition("t", "Degraded", "False", "AsExpected").await;
}

#[tokio::test]
async fn failing_tenant_does_not_block_other_tenants() {
    let Some(stage) = TestNamespace::try_new("troubled").await else { return };
    let operator = stage.operator("one", &[]);
    let foreign = json!({"metadata": {"name": "t"}, "spec": {"ports": [{"port": 80}]}});
    stage.create::<Service>(&serde_json::from_value(foreign).unwrap()).await;
    stage.pool(json!({"gpus": [{"name": "chat", "count": 2}]})).await;
    for name in ["t", "u"] {
        stage.tenant(name, json!({})).await;
        stage.inspect_ok(name, 8).await;
    }
    stage.condition("t", "Degraded", "True", "NameTaken").await;
    stage.deployments(&[("t-0", "p-chat-0-e1"), ("u-0", "p-chat-1-e1")]).await;
    stage.update_spec::<ModelTenant>("u", json!({"suspend": true})).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    stage.claims(&["p-chat-0-e1"]).await;
    stage.update_spec::<ModelTenant>("t", json!({"suspend": true})).await;
    stage.deployments(&[]).await;
    stage.condition("t", "Degraded", "True", "NameTaken").await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn a_secret_of_a_user_is_neither_mounted_nor_deleted() {
    let Some(stage) = TestNamespace::try_new("secret").await else { return };
    let operator = stage.operator("one", &[]);
    let own: Secret = serde_json::from_value(json!({"metadata": {"name": "sluice-t-0"}})).unwrap();
    stage.create(&own).await;
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    let degraded = stage.condition("t", "Degraded", "True", "NameTaken").await;
    assert!(
        degraded.message.contains("sluice-t-0 exists and the operator does not own it"),
        "{}",
        degraded.message
    );
    let ready = stage.condition("t", "Ready", "False", "NameTaken").await;
    assert!(
        ready.message.contains("sluice-t-0 exists and the operator does not own it"),
        "{}",
        ready.message
    );
    stage.deployments(&[]).await;
    stage.update_spec::<ModelTenant>("t", json!({"suspend": true})).await;
    stage.wait_until_idle().await;
    assert!(stage.secrets().await.contains(&"sluice-t-0".to_owned()));
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn pool_with_tenants_is_not_deleted() {
    let Some(stage) = TestNamespace::try_new("finalizer").await else { return };
    let _operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.condition("t", "Placed", "Unknown", "ModelNotInspected").await;
    stage.delete::<GpuPool>("p").await;
    let pools = stage.api::<GpuPool>();
    eventually("Terminating", async || {
        let conditions = pools.get("p").await.unwrap().status?.conditions;
        conditions.into_iter().find(|one| one.type_ == "Terminating" && one.reason == "TenantsRemain")
    })
    .await;
    stage.delete::<ModelTenant>("t").await;
    eventually("the pool is gone", async || pools.get_opt("p").await.unwrap().is_none().then_some(())).await;
}

#[tokio::test]
async fn every_transition_is_an_event() {
    let Some(stage) = TestNamespace::try_new("events").await else { return };
    let _operator = stage.operator("one", &[]);
    stage.tenant("t", json!({})).await;
    stage.condition("t", "Accepted", "False", "PoolNotFound").await;
    stage.pool(json!({})).await;
    stage.condition("t", "Accepted", "True", "AsExpected").await;
    let events = stage.api::<k8s_openapi::api::events::v1::Event>();
    let events_found = eventually("both events", async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let of = |reason: &str| {
            all.iter().find(|event| {
                event.reason.as_deref() == Some(reason) && event.action.as_deref() == Some("Accepted")
            })
        };
        Some((of("PoolNotFound")?.clone(), of("AsExpected")?.clone()))
    })
    .await;
    assert_eq!(
        (events_found.0.type_.as_deref(), events_found.1.type_.as_deref()),
        (Some("Warning"), Some("Normal"))
    );
    assert!(events_found.0.note.unwrap().starts_with("Accepted=False: spec.poolRef"));
    assert_eq!(events_found.0.regarding.unwrap().name.as_deref(), Some("t"));
}

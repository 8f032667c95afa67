//! Tests that slots are placed, moved and removed.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use sluice_types::{GpuPool, ModelTenant};

use super::test_namespace::TestNamespace;

#[tokio::test]
async fn tenant_scales_up_down_and_to_zero() {
    let Some(stage) = TestNamespace::try_new("scale").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    stage.update_spec::<ModelTenant>("t", json!({"replicas": 2})).await;
    stage.deployments(&[("t-0", "p-chat-0-e1"), ("t-1", "p-chat-1-e1")]).await;
    // Each slot has its certificate before its pod needs it.
    assert_eq!(stage.secrets().await, ["sluice-authority", "sluice-t-0", "sluice-t-1"]);
    // Two slots of a tenant never share a GPU.
    stage.update_spec::<ModelTenant>("t", json!({"replicas": 3})).await;
    let lacking = stage.condition("t", "Placed", "False", "Unschedulable").await;
    assert!(lacking.message.starts_with("1 of 3 slots has no GPU: slot 2:"), "{}", lacking.message);
    stage.update_spec::<ModelTenant>("t", json!({"replicas": 1})).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    stage.claims(&["p-chat-0-e1"]).await;
    stage.condition("t", "Placed", "True", "AsExpected").await;

    stage.update_spec::<ModelTenant>("t", json!({"suspend": true})).await;
    stage.deployments(&[]).await;
    stage.claims(&[]).await;
    stage.condition("t", "Serving", "False", "Suspended").await;
    stage.condition("t", "Ready", "False", "Suspended").await;
    assert_eq!(stage.config_maps().await, [""; 0]);
    assert_eq!(stage.secrets().await, ["sluice-authority"]);
    stage.api::<Service>().get("t").await.unwrap();
    stage.update_spec::<ModelTenant>("t", json!({"suspend": false, "replicas": 0})).await;
    stage.condition("t", "Serving", "False", "ScaledToZero").await;
    stage.update_spec::<ModelTenant>("t", json!({"replicas": 1})).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn placement_survives_operator_restart_and_peer_changes() {
    let Some(stage) = TestNamespace::try_new("survive").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    for tenant in ["a", "b", "c"] {
        stage.tenant(tenant, json!({})).await;
        stage.inspect_ok(tenant, 8).await;
    }
    // The scheduler prefers the GPU with the most free memory, so the third slot shares a GPU with one of the first
    // two.
    let placed = async || {
        use kube::ResourceExt;
        let all = stage.api::<Deployment>().list(&kube::api::ListParams::default()).await.unwrap().items;
        all.iter()
            .map(|one| (one.name_any(), one.annotations()["sluice.dev/claim"].clone()))
            .collect::<Vec<_>>()
    };
    let before = sluice_e2e::cluster::eventually("three slots", async || {
        let placed = placed().await;
        (placed.len() == 3).then_some(placed)
    })
    .await;
    operator.kill();
    stage.delete::<ModelTenant>("a").await;
    stage.delete::<Deployment>("a-0").await;
    let _again = stage.operator("one", &[]);
    stage.tenant("d", json!({"priority": 1000})).await;
    stage.inspect_ok("d", 8).await;
    stage.condition("d", "Placed", "True", "AsExpected").await;
    let after = sluice_e2e::cluster::eventually("the fourth slot", async || {
        let placed = placed().await;
        (placed.len() == 3).then_some(placed)
    })
    .await;
    assert_eq!(after[..2], before[1..], "b and c stay where they are");
    assert_eq!(after[2].0, "d-0");
}

#[tokio::test]
async fn a_lost_node_moves_all_slots_of_its_gpu_to_another_claim() {
    let Some(stage) = TestNamespace::try_new("lost").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({"gpus": [{"name": "chat", "count": 1}]})).await;
    let node = stage.node("a").await;
    for tenant in ["t", "u"] {
        stage.tenant(tenant, json!({})).await;
        stage.serve_tenant(tenant, &node).await;
    }
    stage.set_node_ready(&node, "Unknown").await;
    stage.deployments(&[("t-0", "p-chat-0-e2"), ("u-0", "p-chat-0-e2")]).await;
    stage.claims(&["p-chat-0-e2"]).await;
    let other = stage.node("b").await;
    stage.allocate("p-chat-0-e2", &other).await;
    // A deleted node is lost too, whatever its last status was.
    stage.condition("t", "DevicesAllocated", "True", "AsExpected").await;
    stage.delete_node(&other).await;
    stage.deployments(&[("t-0", "p-chat-0-e3"), ("u-0", "p-chat-0-e3")]).await;
    stage.claims(&["p-chat-0-e3"]).await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn cordon_moves_no_slot_and_drain_moves_all() {
    let Some(stage) = TestNamespace::try_new("drain").await else { return };
    let _operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    let node = stage.node("a").await;
    stage.tenant("t", json!({})).await;
    stage.serve_tenant("t", &node).await;
    stage.cordon(&node).await;
    stage.wait_until_idle().await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    // The pod is evicted and created again, and its claim excludes every other node.
    stage.terminate_pod("t-0-pod").await;
    stage.pod("t-0", "t-0-next").await;
    stage.mark_unschedulable("t-0-next", "0/2 nodes are available: cannot allocate all claims").await;
    stage.deployments(&[("t-0", "p-chat-0-e2")]).await;
    stage.claims(&["p-chat-0-e2"]).await;
}

#[tokio::test]
async fn mode_change_waits_for_empty_gpu_or_moves_all_slots() {
    let Some(stage) = TestNamespace::try_new("mode").await else { return };
    let _operator = stage.operator("one", &[]);
    stage.pool(json!({"gpus": [{"name": "chat", "count": 1}]})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    let other = json!({"host": {"memory": "128Mi"}});
    stage.update_spec::<GpuPool>("p", json!({"device": other})).await;
    let pool = async |kind: &str, status: &str| {
        let api = stage.api::<GpuPool>();
        sluice_e2e::cluster::eventually(&format!("{kind}={status}"), async || {
            let conditions = api.get("p").await.unwrap().status?.conditions;
            conditions.into_iter().find(|one| one.type_ == kind && one.status == status)
        })
        .await
    };
    assert_eq!(pool("Degraded", "True").await.reason, "UpdateWaits");
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    stage.update_spec::<GpuPool>("p", json!({"updatePolicy": "Disruptive"})).await;
    stage.deployments(&[("t-0", "p-chat-0-e2")]).await;
    stage.claims(&["p-chat-0-e2"]).await;
    pool("Degraded", "False").await;
    // Once the GPU has no slot, the update is applied and stops no pod.
    stage
        .update_spec::<GpuPool>(
            "p",
            json!({"updatePolicy": "WhenEmpty", "device": {"host": {"memory": "96Mi"}}}),
        )
        .await;
    pool("Degraded", "True").await;
    stage.update_spec::<ModelTenant>("t", json!({"suspend": true})).await;
    stage.claims(&[]).await;
    stage.update_spec::<ModelTenant>("t", json!({"suspend": false})).await;
    stage.claims(&["p-chat-0-e1"]).await;
}

#[tokio::test]
async fn slot_keeps_claim_when_new_claim_cannot_be_created() {
    let Some(stage) = TestNamespace::try_new("typo").await else { return };
    let _operator = stage.operator("one", &[]);
    stage.pool(json!({"gpus": [{"name": "chat", "count": 1}], "updatePolicy": "Disruptive"})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    let device = |selectors: &[&str]| json!({"device": {"host": {"memory": "96Mi"}, "selectors": selectors}});
    stage.update_spec::<GpuPool>("p", device(&["device.attributes[", "true"])).await;
    let degraded = stage.condition("t", "Degraded", "True", "ApplyFailed").await;
    assert!(degraded.message.contains("p-chat-0-e2"), "{}", degraded.message);
    stage.wait_until_idle().await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    stage.claims(&["p-chat-0-e1"]).await;
    stage.update_spec::<GpuPool>("p", device(&["true"])).await;
    stage.deployments(&[("t-0", "p-chat-0-e2")]).await;
    stage.claims(&["p-chat-0-e2"]).await;
}

#[tokio::test]
async fn unsupported_spec_is_reported_with_field() {
    let Some(stage) = TestNamespace::try_new("refused").await else { return };
    let _operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("group", json!({"gpuGroup": "none"})).await;
    let group = stage.condition("group", "Accepted", "False", "GroupNotFound").await;
    assert_eq!(group.message, "spec.gpuGroup: the pool has no group `none`; its groups are chat");
    let file = json!({"type": "File", "persistentVolumeClaim": null, "file": {"path": "/m"}});
    stage.tenant("file", json!({"model": {"source": file}})).await;
    stage.condition("file", "Accepted", "False", "LocalOnly").await;
    stage.tenant("large", json!({})).await;
    stage.inspect_ok("large", 400).await;
    let large = stage.condition("large", "Accepted", "False", "ModelLargerThanGpu").await;
    assert!(large.message.contains("which has 96 MiB; raise memory.maxRemappedPercent"), "{}", large.message);
    stage.condition("large", "Ready", "False", "ModelLargerThanGpu").await;
    stage.deployments(&[]).await;
}

//! Tests conditions of pods: driver errors, ended downloads, and other pods' use of a node.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use sluice_e2e::cluster::eventually;
use sluice_types::{GpuPool, ModelTenant};

use super::test_namespace::TestNamespace;

/// Places a slot of the tenant `t` up to its allocated claim; returns the claim's node.
async fn place_slot(stage: &TestNamespace, spec: Value) -> String {
    stage.pool(json!({})).await;
    stage.tenant("t", spec).await;
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    let node = stage.node("a").await;
    stage.allocate("p-chat-0-e1", &node).await;
    node
}

/// Places a slot whose model is downloaded, up to its pod.
async fn downloaded_slot(stage: &TestNamespace) -> Pod {
    let source =
        json!({"type": "HuggingFace", "huggingFace": {"repo": "a/b"}, "persistentVolumeClaim": null});
    place_slot(stage, json!({"model": {"source": source}})).await;
    let pod = stage.pod("t-0", "t-0-pod").await;
    stage.condition("t", "DevicesAllocated", "True", "AsExpected").await;
    pod
}

#[tokio::test]
async fn driver_failure_is_reported_until_pod_runs() {
    let Some(stage) = TestNamespace::try_new("refused").await else { return };
    let operator = stage.operator("one", &[]);
    let pod = downloaded_slot(&stage).await;
    let said = "host.sluice.dev: memory 96Mi exceeds what the node lends";
    stage.create(&pod_event(&stage, &pod, "FailedPrepareDynamicResources", said)).await;
    let refused = stage.condition("t", "DevicesAllocated", "False", "DriverRefused").await;
    assert!(refused.message.ends_with(said), "{}", refused.message);
    stage.condition("t", "Ready", "False", "DriverRefused").await;
    stage.start_pod("t-0-pod", &format!("{}-a", stage.namespace)).await;
    stage.condition("t", "DevicesAllocated", "True", "AsExpected").await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn pod_creation_failure_is_reported_until_pod_exists() {
    let Some(stage) = TestNamespace::try_new("unmade").await else { return };
    let operator = stage.operator("one", &["--status-seconds", "1"]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    let jobs = stage.api::<Job>();
    eventually("the inspection", async || jobs.get_opt("t-inspect").await.unwrap()).await;
    let quota = "Error creating: pods \"t\" is forbidden: exceeded quota: few";
    stage.create(&create_failure_event(&stage, "Job", "t-inspect", quota)).await;
    let condition = stage.condition("t", "Placed", "Unknown", "InspectionFailed").await;
    assert_eq!(condition.message, format!("the inspection pod does not start: {quota}"));
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    stage.condition("t", "DevicesAllocated", "Unknown", "NotAllocated").await;
    // The event of another ReplicaSet with a longer name.
    stage.create(&create_failure_event(&stage, "ReplicaSet", "t-0-0-7d9c5b", "another one")).await;
    let class = "Error creating: pods \"t-0-\" is forbidden: no PriorityClass with name high was found";
    stage.create(&create_failure_event(&stage, "ReplicaSet", "t-0-7d9c5b", class)).await;
    for kind in ["DevicesAllocated", "WeightsLoaded", "Serving", "Ready"] {
        let condition = stage.condition("t", kind, "False", "PodsRefused").await;
        assert!(
            condition.message.ends_with(&format!("slot t-0: the pod cannot be created: {class}")),
            "{}",
            condition.message
        );
    }
    let node = stage.node("a").await;
    stage.allocate("p-chat-0-e1", &node).await;
    stage.pod("t-0", "t-0-pod").await;
    stage.start_pod("t-0-pod", &node).await;
    stage.condition("t", "Ready", "True", "AsExpected").await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

/// Returns a controller's event that it cannot create a pod.
fn create_failure_event(stage: &TestNamespace, kind: &str, name: &str, message: &str) -> Event {
    let object = json!({"kind": kind, "name": name, "namespace": stage.namespace, "uid": "u"});
    let event = json!({"metadata": {"name": format!("{name}.1")}, "involvedObject": object, "type": "Warning",
        "reason": "FailedCreate", "message": message});
    serde_json::from_value(event).unwrap()
}

#[tokio::test]
async fn terminated_pod_is_ignored_and_successor_reports_reason() {
    let Some(stage) = TestNamespace::try_new("ended").await else { return };
    let operator = stage.operator("one", &["--status-seconds", "1"]);
    let node = place_slot(&stage, json!({})).await;
    // The ended pod's name sorts first.
    stage.pod("t-0", "t-0-a").await;
    stage.start_pod("t-0-a", &node).await;
    stage.condition("t", "Ready", "True", "AsExpected").await;
    let why = "Usage of EmptyDir volume \"dev-shm\" exceeds the limit \"1Gi\".";
    stage.set_status::<Pod>("t-0-a", json!({"phase": "Failed", "reason": "Evicted", "message": why})).await;
    let gone = stage.condition("t", "Serving", "False", "PodNotReady").await;
    assert_eq!(gone.message, "slot t-0: there is no pod yet");
    stage.pod("t-0", "t-0-b").await;
    let names_reason = async || {
        let condition = stage.condition("t", "Serving", "False", "PodNotReady").await;
        (condition.message
            == format!("slot t-0: pod t-0-b is starting; an earlier one ended: Evicted: {why}"))
        .then_some(())
    };
    eventually("why its predecessor ended", names_reason).await;
    stage.start_pod("t-0-b", &node).await;
    stage.condition("t", "Ready", "True", "AsExpected").await;
    let tenant = stage.api::<ModelTenant>().get("t").await.unwrap();
    assert_eq!(tenant.status.unwrap().slots[0].pod.as_deref(), Some("t-0-b"));
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

/// Between two restarts the kubelet reports a running container; the status keeps the message of the last exit.
#[tokio::test]
async fn restarting_container_reports_last_failure() {
    let Some(stage) = TestNamespace::try_new("again").await else { return };
    let operator = stage.operator("one", &["--status-seconds", "1"]);
    place_slot(&stage, json!({})).await;
    stage.pod("t-0", "t-0-a").await;
    let ended = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "fetching\nthe digest is wrong\n"}});
    let backs_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
    let runs = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let starting = "slot t-0: pod t-0-a is starting; it failed before: container fetch: the digest is wrong";
    let failing = "slot t-0: container fetch: CrashLoopBackOff: the digest is wrong";
    let steps = [
        (&backs_off, "PodFailing", failing),
        (&runs, "PodNotReady", starting),
        // This case is last: the API server does not let an ended container run again here.
        (&ended, "PodNotReady", starting),
    ];
    for (state, reason, message) in steps {
        let container = json!({"name": "fetch", "state": state, "lastState": ended, "ready": false,
            "restartCount": 1, "image": "i", "imageID": ""});
        stage.set_status::<Pod>("t-0-a", json!({"initContainerStatuses": [container]})).await;
        let seen = async || {
            let serving = stage.condition("t", "Serving", "False", reason).await;
            (serving.message == message).then_some(())
        };
        eventually(message, seen).await;
    }
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

fn pod_event(stage: &TestNamespace, pod: &Pod, reason: &str, message: &str) -> Event {
    let involved =
        json!({"kind": "Pod", "namespace": stage.namespace, "name": pod.name_any(), "uid": pod.uid()});
    let event = json!({"metadata": {"name": "refused.1"}, "involvedObject": involved, "reason": reason,
        "message": message, "type": "Warning"});
    serde_json::from_value(event).unwrap()
}

#[tokio::test]
async fn blocked_inspection_or_slot_reports_reason() {
    let Some(stage) = TestNamespace::try_new("hindered").await else { return };
    let operator = stage.operator("one", &["--status-seconds", "1"]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    let inspects = stage.start_inspection("t").await;
    let missing = "MountVolume.SetUp failed: secret \"gone\" not found";
    stage.create(&pod_event(&stage, &inspects, "FailedMount", missing)).await;
    let condition = stage.condition("t", "Placed", "Unknown", "InspectionFailed").await;
    assert_eq!(condition.message, format!("the inspection pod does not start: {missing}"));
    let waiting = json!({"reason": "CreateContainerConfigError", "message": "secret \"token\" not found"});
    let status = json!({"name": "inspect", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": waiting}});
    stage
        .set_status::<Pod>(&inspects.name_any(), json!({"phase": "Pending", "containerStatuses": [status]}))
        .await;
    let token = async || {
        let condition = stage.condition("t", "Placed", "Unknown", "InspectionFailed").await;
        condition.message.ends_with("CreateContainerConfigError: secret \"token\" not found").then_some(())
    };
    eventually("the container's own word", token).await;

    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    let node = stage.node("a").await;
    stage.allocate("p-chat-0-e1", &node).await;
    let pod = stage.pod("t-0", "t-0-pod").await;
    let mut mount = pod_event(&stage, &pod, "FailedMount", missing);
    mount.metadata.name = Some("unmounted.2".into());
    stage.create(&mount).await;
    let condition = stage.condition("t", "Ready", "False", "PodFailing").await;
    assert!(condition.message.contains(missing), "{}", condition.message);
    let elsewhere = "Multi-Attach error for volume \"models\"";
    let mut attach = pod_event(&stage, &pod, "FailedAttachVolume", elsewhere);
    attach.metadata.name = Some("unattached.1".into());
    stage.create(&attach).await;
    let names_volume = async || {
        let condition = stage.condition("t", "Ready", "False", "PodFailing").await;
        condition.message.contains(elsewhere).then_some(())
    };
    eventually("the volume is on another node", names_volume).await;
    stage.start_pod("t-0-pod", &node).await;
    stage.condition("t", "Degraded", "False", "AsExpected").await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn hung_inspection_restarts_after_spec_change() {
    let Some(stage) = TestNamespace::try_new("reinspect").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    let jobs = stage.api::<Job>();
    let first = eventually("the inspection", async || jobs.get_opt("t-inspect").await.unwrap()).await;
    stage.wait_until_idle().await;
    assert_eq!(jobs.get("t-inspect").await.unwrap().uid(), first.uid(), "it stays while nothing changes");
    let taint = json!([{"key": "gpu", "operator": "Exists"}]);
    let tolerant = Patch::Merge(json!({"spec": {"tolerations": taint}}));
    stage.api::<GpuPool>().patch("p", &PatchParams::default(), &tolerant).await.unwrap();
    let next = eventually("another inspection", async || {
        jobs.get_opt("t-inspect").await.unwrap().filter(|job| job.uid() != first.uid())
    })
    .await;
    let tolerates = next.spec.unwrap().template.spec.unwrap().tolerations.unwrap_or_default();
    assert!(tolerates.iter().any(|one| one.key.as_deref() == Some("gpu")), "{tolerates:?}");
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn event_before_its_pod_is_kept() {
    let Some(stage) = TestNamespace::try_new("early").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    // A pod without labels is unknown.
    let (pods, nothing) = (stage.api::<Pod>(), PatchParams::default());
    let inspects = stage.start_inspection("t").await;
    let name = inspects.name_any();
    stage.delete::<Pod>(&name).await;
    let mut bare = json!({"metadata": {"name": name}, "spec": inspects.spec});
    bare["spec"].as_object_mut().unwrap().remove("nodeName");
    let bare = stage.create::<Pod>(&serde_json::from_value(bare).unwrap()).await;
    let missing = "MountVolume.SetUp failed: secret \"gone\" not found";
    stage.create(&pod_event(&stage, &bare, "FailedMount", missing)).await;
    stage.wait_until_idle().await;
    let labels = json!({"metadata": {"labels": inspects.labels()}});
    pods.patch(&name, &nothing, &Patch::Merge(labels)).await.unwrap();
    let condition = stage.condition("t", "Placed", "Unknown", "InspectionFailed").await;
    assert_eq!(condition.message, format!("the inspection pod does not start: {missing}"));
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn missing_slot_secret_is_restored_when_pod_waits() {
    let Some(stage) = TestNamespace::try_new("secret").await else { return };
    let operator = stage.operator("one", &["--secret-seconds", "2"]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    let node = stage.node("a").await;
    stage.serve_tenant("t", &node).await;
    stage.terminate_pod("t-0-pod").await;
    stage.wait_until_idle().await;
    let secrets = stage.api::<Secret>();
    stage.delete::<Secret>("sluice-t-0").await;
    let pod = stage.pod("t-0", "t-0-next").await;
    let missing = "MountVolume.SetUp failed for volume \"tls\": secret \"sluice-t-0\" not found";
    stage.create(&pod_event(&stage, &pod, "FailedMount", missing)).await;
    eventually("the Secret is back", async || secrets.get_opt("sluice-t-0").await.unwrap()).await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn downloaded_pod_loses_egress_label() {
    let Some(stage) = TestNamespace::try_new("fetched").await else { return };
    let operator = stage.operator("one", &[]);
    let pod = downloaded_slot(&stage).await;
    assert_eq!(pod.labels()["sluice.dev/fetching"], "true");
    let fetch = |state: Value| {
        let status = json!({"name": "fetch", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        json!({"phase": "Pending", "initContainerStatuses": [status]})
    };
    let failed = json!({"terminated": {"exitCode": 1}});
    stage.set_status::<Pod>("t-0-pod", fetch(failed)).await;
    stage.wait_until_idle().await;
    let label = async || {
        stage.api::<Pod>().get("t-0-pod").await.unwrap().labels().get("sluice.dev/fetching").cloned()
    };
    assert_eq!(label().await.as_deref(), Some("true"), "it is tried again, and needs its way out");
    stage.set_status::<Pod>("t-0-pod", fetch(json!({"terminated": {"exitCode": 0}}))).await;
    eventually("the label is off", async || label().await.is_none().then_some(())).await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn only_pods_with_changed_api_keys_are_annotated() {
    let Some(stage) = TestNamespace::try_new("keys").await else { return };
    let keys = |text: &str| json!({"metadata": {"name": "keys"}, "stringData": {"keys": text}});
    let secrets = stage.api::<Secret>();
    stage.create::<Secret>(&serde_json::from_value(keys("one\ntwo")).unwrap()).await;
    // Creation times have whole seconds: a pod of the same second may lack the Secret's contents.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let operator = stage.operator("one", &["--secret-seconds", "1"]);
    stage.pool(json!({"gpus": [{"name": "chat", "count": 2}]})).await;
    let keyed = json!({"access": {"apiKeysSecretRef": {"name": "keys", "key": "keys"}}});
    stage.tenant("t", keyed).await;
    stage.tenant("u", json!({})).await;
    let node = stage.node("a").await;
    stage.serve_tenant("t", &node).await;
    stage.serve_tenant("u", &node).await;
    let annotation = async |pod: &str| {
        stage.api::<Pod>().get(pod).await.unwrap().annotations().get("sluice.dev/keys-version").cloned()
    };
    let before = stage.secret_read_count("keys");
    eventually("it looks", async || (stage.secret_read_count("keys") >= before + 2).then_some(())).await;
    assert_eq!(annotation("t-0-pod").await, None, "it has what was there before it");
    let revoked = Patch::Merge(json!({"stringData": {"keys": "two"}}));
    let changed = secrets.patch("keys", &PatchParams::default(), &revoked).await.unwrap();
    let is_annotated = async || {
        annotation("t-0-pod").await.filter(|version| Some(version) == changed.resource_version().as_ref())
    };
    eventually("its kubelet is notified", is_annotated).await;
    let before = stage.secret_read_count("keys");
    eventually("it looks", async || (stage.secret_read_count("keys") >= before + 2).then_some(())).await;
    let writes = stage.writes();
    let to = |pod: &str| writes.iter().filter(|write| write.contains(&format!("/pods/{pod}"))).count();
    assert_eq!((to("t-0-pod"), to("u-0-pod")), (1, 0), "once for each change: {writes:?}");
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

#[tokio::test]
async fn foreign_pod_requests_reduce_slot_capacity() {
    let Some(stage) = TestNamespace::try_new("loads").await else { return };
    let operator = stage.operator("one", &[]);
    stage.pool(json!({"gpus": [{"name": "chat", "count": 1}]})).await;
    stage.tenant("t", json!({})).await;
    let node = stage.node("a").await;
    stage.serve_tenant("t", &node).await;
    // The node offers 8 GiB.
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"memory": "7900Mi"}}});
    let large = json!({"metadata": {"name": "large"}, "spec": {"containers": [container]}});
    stage.create::<Pod>(&serde_json::from_value(large).unwrap()).await;
    stage.start_pod("large", &node).await;
    stage.wait_until_idle().await;
    stage.tenant("u", json!({"memory": {"hostKv": "400Mi"}})).await;
    stage.inspect_ok("u", 8).await;
    let lacking = stage.condition("u", "Placed", "False", "Unschedulable").await;
    assert!(lacking.message.contains("too little host memory"), "{}", lacking.message);
    stage.condition("t", "Placed", "True", "AsExpected").await;
    for (ready, reason) in [("True", "AsExpected"), ("False", "Unschedulable")] {
        let tenants =
            operator.metric("sluice_operator_tenants", &[("ready", ready), ("reason", reason)]).await;
        assert_eq!(tenants, Some(1.0), "{ready} {reason}");
    }

    stage.terminate_pod("large").await;
    stage.update_spec::<ModelTenant>("u", json!({"priority": 7})).await;
    stage.condition("u", "Placed", "True", "AsExpected").await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}

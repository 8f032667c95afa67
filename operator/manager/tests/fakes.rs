//! Fakes of the other components of a cluster: an inspection, the scheduler, the Deployment controller, a kubelet.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sluice_e2e::cluster::eventually;
use sluice_types::ModelTenant;

use super::test_namespace::TestNamespace;

/// Returns the report of an inspection that found a model of `layers` layers of 1 MiB.
pub fn geometry_report(layers: u32) -> Value {
    let mib = 1 << 20;
    json!({"version": 1, "geometry": {"global_bytes": mib, "layer_bytes": mib, "layers": layers,
        "kv_bytes_per_token": 1024, "max_model_len": 1024, "activation_bytes": 65536, "step_activation_bytes": 65536,
        "thread_bytes": 0, "staging_bytes": 0}})
}

impl TestNamespace {
    /// Creates a pod for a tenant's inspection, as the Job controller does.
    pub async fn start_inspection(&self, tenant: &str) -> Pod {
        let (name, api) = (format!("{tenant}-inspect"), self.api::<Job>());
        let job = eventually(&name, async || api.get_opt(&name).await.unwrap()).await;
        let template = job.spec.unwrap().template;
        let mut pod = json!({"metadata": template.metadata, "spec": template.spec});
        pod["metadata"]["name"] = json!(format!("{name}-pod"));
        self.create::<Pod>(&serde_json::from_value(pod).unwrap()).await
    }

    /// Ends a tenant's inspection with this termination message.
    pub async fn finish_inspection(&self, tenant: &str, report: &Value) {
        let pod = self.start_inspection(tenant).await;
        let ended = json!({"exitCode": 0, "reason": "Completed", "message": report.to_string()});
        let container = json!({"name": "inspect", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
            "state": {"terminated": ended}});
        let status = json!({"phase": "Succeeded", "containerStatuses": [container]});
        self.set_status::<Pod>(&pod.name_any(), status).await;
    }

    /// Ends an inspection that found a model of `layers` layers of 1 MiB.
    pub async fn inspect_ok(&self, tenant: &str, layers: i32) {
        let mib = 1 << 20;
        let model = json!({"weightsBytes": i64::from(layers) * mib + mib, "layers": layers, "kvBytesPerToken": 1024,
            "globalBytes": mib, "layerBytes": mib, "maxModelLen": 1024, "activationBytes": 65536,
            "stepActivationBytes": 65536, "threadBytes": 0, "stagingBytes": 0});
        self.set_status::<ModelTenant>(tenant, json!({"model": model})).await;
    }

    /// Creates a ready node.
    pub async fn node(&self, name: &str) -> String {
        let name = format!("{}-{name}", self.namespace);
        let node = json!({"metadata": {"name": name}});
        let node: Node = serde_json::from_value(node).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        self.set_node_ready(&name, "True").await;
        name
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub async fn set_node_ready(&self, name: &str, ready: &str) {
        let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"conditions": [ready], "allocatable": {"memory": "8Gi"}});
        let patch = Patch::Merge(json!({"status": status}));
        self.nodes().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub async fn cordon(&self, name: &str) {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        self.nodes().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub async fn delete_node(&self, name: &str) {
        self.nodes().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Allocates a device to a claim, as the scheduler does.
    pub async fn allocate(&self, claim: &str, node: &str) {
        let result = |request: &str| json!({"request": request, "driver": "sluice.dev", "pool": node, "device": request});
        let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
        let allocation = json!({"devices": {"results": [result("gpu"), result("neighbourhood")]},
            "nodeSelector": {"nodeSelectorTerms": terms}});
        self.set_status::<ResourceClaim>(claim, json!({"allocation": allocation})).await;
    }

    /// Creates a pod from a slot's current Deployment, as the Deployment controller does.
    pub async fn pod(&self, slot: &str, name: &str) -> Pod {
        let deployment = self.api::<Deployment>().get(slot).await.unwrap();
        let template = deployment.spec.unwrap().template;
        let mut pod = json!({"metadata": template.metadata, "spec": template.spec});
        pod["metadata"]["name"] = json!(name);
        self.create(&serde_json::from_value(pod).unwrap()).await
    }

    /// Starts a pod and sets it to ready, as a kubelet does.
    pub async fn start_pod(&self, pod: &str, node: &str) {
        self.bind_pod(pod, node).await;
        self.set_pod_ready(pod, "True").await;
    }

    /// Assigns a node to a pod, as the scheduler does.
    pub async fn bind_pod(&self, pod: &str, node: &str) {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node}});
        let pods = self.api::<Pod>();
        let bound: Result<Value, _> =
            pods.create_subresource("binding", pod, &PostParams::default(), &binding).await;
        bound.unwrap();
    }

    pub async fn set_pod_ready(&self, pod: &str, ready: &str) {
        self.set_pod_address(pod, "10.0.0.9", ready).await;
    }

    /// Sets the address of a pod and whether it is ready.
    pub async fn set_pod_address(&self, pod: &str, address: &str, ready: &str) {
        let conditions =
            json!([{"type": "Ready", "status": ready}, {"type": "PodScheduled", "status": "True"}]);
        self.set_status::<Pod>(pod, json!({"phase": "Running", "podIP": address, "conditions": conditions}))
            .await;
    }

    /// Marks a pod as unschedulable, as the scheduler does.
    pub async fn mark_unschedulable(&self, pod: &str, message: &str) {
        let scheduled = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]);
        self.set_status::<Pod>(pod, json!({"conditions": scheduled})).await;
    }

    /// Ends a pod permanently, as a kubelet does.
    pub async fn terminate_pod(&self, pod: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.api::<Pod>().delete(pod, &now).await.unwrap();
    }

    /// Brings a tenant of one slot to the state in which it serves.
    pub async fn serve_tenant(&self, tenant: &str, node: &str) {
        self.inspect_ok(tenant, 8).await;
        let slot = format!("{tenant}-0");
        let api = self.api::<Deployment>();
        let deployment = eventually(&slot, async || api.get_opt(&slot).await.unwrap()).await;
        let claim = deployment.annotations()["sluice.dev/claim"].clone();
        self.allocate(&claim, node).await;
        self.pod(&slot, &format!("{slot}-pod")).await;
        self.start_pod(&format!("{slot}-pod"), node).await;
        self.condition(tenant, "Ready", "True", "AsExpected").await;
    }

    /// Waits until no operator has written anything for a while.
    pub async fn wait_until_idle(&self) -> usize {
        let (mut count, mut since) = (self.writes().len(), std::time::Instant::now());
        eventually("calm", async || {
            let now = self.writes().len();
            if now != count {
                (count, since) = (now, std::time::Instant::now());
            }
            (since.elapsed().as_millis() >= 1500).then_some(count)
        })
        .await
    }
}

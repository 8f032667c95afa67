//! Memory requests of pods.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource;
use sluice_types::Quantity;

/// Pods that occupy a node; ended pods have released their resources.
pub const SCHEDULED_PODS_SELECTOR: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// The memory request of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// The node.
    pub node: String,
    /// Memory, bytes.
    pub bytes: u64,
}

/// Returns the request of a foreign pod; `None` = it has no node. A pod that is being deleted counts as 0.
pub fn pod_request(pod: &Pod) -> Option<PodRequest> {
    let node = pod.spec.as_ref()?.node_name.clone().filter(|node| !node.is_empty())?;
    let stays = pod.metadata.deletion_timestamp.is_none();
    Some(PodRequest { node, bytes: if stays { requested_bytes(pod) } else { 0 } })
}

/// Returns the memory request of a pod, bytes, as the Kubernetes scheduler counts it: its containers and sidecars
/// together, or the largest of the init containers with the sidecars before it; or the pod-level request.
pub fn requested_bytes(pod: &Pod) -> u64 {
    let Some(spec) = &pod.spec else { return 0 };
    let overhead = spec.overhead.as_ref().and_then(|overhead| overhead.get("memory")).map_or(0, bytes);
    if let Some(whole) = spec.resources.as_ref().and_then(memory) {
        return whole.saturating_add(overhead);
    }
    let (mut sidecars, mut largest) = (0_u64, 0_u64);
    for init in spec.init_containers.iter().flatten() {
        let own = container_bytes(init);
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.saturating_add(own);
            largest = largest.max(sidecars);
        } else {
            largest = largest.max(sidecars.saturating_add(own));
        }
    }
    let containers = spec.containers.iter().map(container_bytes).fold(sidecars, u64::saturating_add);
    containers.max(largest).saturating_add(overhead)
}

fn container_bytes(container: &Container) -> u64 {
    container.resources.as_ref().and_then(memory).unwrap_or(0)
}

fn memory(resources: &ResourceRequirements) -> Option<u64> {
    resources.requests.as_ref()?.get("memory").map(bytes)
}

/// An unreadable quantity counts as 0; the API server admits none.
fn bytes(quantity: &resource::Quantity) -> u64 {
    let read = serde_json::from_value::<Quantity>(serde_json::Value::from(quantity.0.as_str()));
    read.map_or(0, |quantity| quantity.bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"memory": memory}}})
    }

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn pod_request_matches_scheduler_accounting() {
        let mut sidecar = container("2Mi");
        sidecar["restartPolicy"] = json!("Always");
        let spec = |init: &[Value]| {
            let containers = [container("1Mi"), container("3Mi"), json!({"name": "nothing"})];
            json!({"nodeName": "n", "containers": containers, "initContainers": init})
        };
        let mib = |init: &[Value]| requested_bytes(&pod(&spec(init))) >> 20;
        assert_eq!(mib(&[]), 4);
        assert_eq!(mib(&[container("3Mi")]), 4, "it has ended when the others begin");
        assert_eq!(mib(&[container("9Mi")]), 9);
        assert_eq!(mib(&[sidecar.clone(), container("9Mi")]), 11);
        assert_eq!(mib(&[container("9Mi"), sidecar]), 9);
        let mut whole = spec(&[]);
        whole["resources"] = json!({"requests": {"memory": "7Mi"}});
        whole["overhead"] = json!({"memory": "1Mi"});
        assert_eq!(requested_bytes(&pod(&whole)) >> 20, 8);
    }

    #[test]
    fn only_scheduled_live_pods_have_requests() {
        let on = pod(&json!({"nodeName": "n", "containers": [container("1Mi")]}));
        assert_eq!(pod_request(&on), Some(PodRequest { node: "n".into(), bytes: 1 << 20 }));
        assert_eq!(pod_request(&pod(&json!({"containers": [container("1Mi")]}))), None);
        let mut terminating = on;
        terminating.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(pod_request(&terminating), Some(PodRequest { node: "n".into(), bytes: 0 }));
    }
}

//! Nodes: whether pods can run on them.

use k8s_openapi::api::core::v1::Node;
use sluice_plan::observed::ObservedNode;
use sluice_types::Quantity;

/// Returns the relevant parts of a node.
pub fn node(node: &Node) -> ObservedNode {
    let status = node.status.as_ref();
    let ready = status.and_then(|status| {
        status.conditions.as_ref()?.iter().find(|condition| condition.type_ == "Ready").cloned()
    });
    let lost = ready.filter(|ready| ready.status != "True");
    let memory = status.and_then(|status| status.allocatable.as_ref()?.get("memory").cloned());
    let bytes = memory.and_then(|memory| {
        serde_json::from_value::<Quantity>(serde_json::Value::from(memory.0))
            .ok()
            .map(|memory| memory.bytes())
    });
    ObservedNode {
        lost_since: lost.map(|lost| lost.last_transition_time.map_or(0, |time| time.0.as_second())),
        is_cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
        // A node without a memory value sets no limit.
        allocatable_bytes: bytes.unwrap_or(u64::MAX),
        requested_bytes: 0,
    }
}

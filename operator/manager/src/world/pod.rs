//! Pods of slots, of each what conditions are made of.

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodStatus};
use sluice_plan::objects::inspect::report;
use sluice_plan::objects::{FETCHING, SLOT, TENANT, TENANT_UID};
use sluice_plan::seen::PodSeen;
use sluice_wire::geometry::{self as wire, Geometry};

use super::load::requested_bytes;

/// Reasons for which a container waits and which do not pass by themselves.
const FAILURES: [&str; 7] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// What is kept of a slot's pod; `None` = it is no slot's.
pub fn pod(pod: &Pod) -> Option<PodSeen> {
    let labels = pod.metadata.labels.as_ref()?;
    let spec = pod.spec.as_ref()?;
    let claim = spec.resource_claims.iter().flatten().find_map(|claim| claim.resource_claim_name.clone());
    let status = pod.status.clone().unwrap_or_default();
    let condition = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    let unscheduled = condition("PodScheduled").filter(|scheduled| scheduled.status == "False");
    let fetched = labels.contains_key(FETCHING) && has_fetched(&status);
    Some(PodSeen {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        tenant: labels.get(TENANT)?.clone(),
        index: labels.get(SLOT)?.parse().ok()?,
        claim: claim.unwrap_or_default(),
        node: spec.node_name.clone().filter(|node| !node.is_empty()),
        ip: status.pod_ip.clone(),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        ready: condition("Ready").is_some_and(|ready| ready.status == "True"),
        memory_bytes: requested_bytes(pod),
        unscheduled: unscheduled.map(|condition| condition.message.clone().unwrap_or_default()),
        refused: None,
        failing: failing(&status),
        fetched,
    })
}

fn has_fetched(status: &PodStatus) -> bool {
    let fetch = status.init_container_statuses.iter().flatten().find(|container| container.name == "fetch");
    let ended = fetch.and_then(|fetch| fetch.state.as_ref()?.terminated.as_ref());
    ended.is_some_and(|ended| ended.exit_code == 0)
}

fn failing(status: &PodStatus) -> Option<String> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten()).find_map(stuck)
}

fn stuck(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| FAILURES.contains(reason))?;
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    // The end of its log: the last line says why it ended.
    let words = last.and_then(|last| last.message.as_deref()?.trim().lines().next_back());
    let message = words.or(waiting.message.as_deref());
    Some(format!("container {}: {reason}: {}", container.name, message.unwrap_or_default()))
}

/// What a pod of an inspection said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Its tenant.
    pub tenant: String,
    /// Uid of that tenant: another one of the same name may have another model.
    pub tenant_uid: String,
    /// What it said; `None` = nothing yet.
    pub said: Option<Result<Geometry, wire::Refusal>>,
}

/// What is kept of an inspection's pod; `None` = it is none.
pub fn inspection(pod: &Pod) -> Option<Inspection> {
    let labels = pod.metadata.labels.as_ref()?;
    let (tenant, tenant_uid) = (labels.get(TENANT)?.clone(), labels.get(TENANT_UID)?.clone());
    Some(Inspection { tenant, tenant_uid, said: report(pod) })
}

/// Why a claim of a pod could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Uid of the pod.
    pub pod_uid: String,
    /// What the driver said.
    pub message: String,
}

/// Events that tell so.
pub const REFUSALS: &str = "reason=FailedPrepareDynamicResources,involvedObject.kind=Pod";

/// Name of the pod, and why.
pub fn refusal(event: &Event) -> Option<(String, Refusal)> {
    let pod = &event.involved_object;
    let message = event.message.clone().unwrap_or_default();
    Some((pod.name.clone()?, Refusal { pod_uid: pod.uid.clone().unwrap_or_default(), message }))
}

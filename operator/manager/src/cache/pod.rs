//! Pods of slots, with the data that conditions need.

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, Event, ObjectReference, Pod, PodCondition, PodStatus,
};
use sluice_plan::objects::inspect::{report, startup_failure};
use sluice_plan::objects::{FETCHING, KEYS_VERSION, SLOT, TENANT, TENANT_UID};
use sluice_plan::observed::{EndedPod, ObservedPod};
use sluice_wire::geometry::{self as wire, Geometry};

use super::pod_request::requested_bytes;

/// Waiting reasons of a container that do not resolve on their own.
const FATAL_WAITING_REASONS: [&str; 7] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// Returns the relevant parts of a slot's pod; `None` = it is no slot's pod.
pub fn pod(pod: &Pod) -> Option<ObservedPod> {
    let labels = pod.metadata.labels.as_ref()?;
    let spec = pod.spec.as_ref()?;
    let claim = spec.resource_claims.iter().flatten().find_map(|claim| claim.resource_claim_name.clone());
    let status = pod.status.clone().unwrap_or_default();
    let fetched = labels.contains_key(FETCHING) && has_fetched(&status);
    Some(ObservedPod {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        tenant: labels.get(TENANT)?.clone(),
        index: labels.get(SLOT)?.parse().ok()?,
        claim: claim.unwrap_or_default(),
        node: spec.node_name.clone().filter(|node| !node.is_empty()),
        ip: status.pod_ip.clone(),
        is_deleting: pod.metadata.deletion_timestamp.is_some(),
        ended: termination_message(&status).map(|why| EndedPod { created_at: created_at(pod), reason: why }),
        is_ready: condition(&status, "Ready").is_some_and(|ready| ready.status == "True"),
        memory_bytes: requested_bytes(pod),
        unschedulable_reason: scheduling_error(&status),
        prepare_error: None,
        failure_reason: waiting_failure(&status),
        last_restart_reason: last_restart_message(&status),
        predecessor_failure: None,
        is_fetched: fetched,
        created_at: created_at(pod),
        keys_version: pod.metadata.annotations.as_ref().and_then(|all| all.get(KEYS_VERSION).cloned()),
    })
}

fn created_at(pod: &Pod) -> i64 {
    pod.metadata.creation_timestamp.as_ref().map_or(0, |at| at.0.as_second())
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Returns why it cannot be scheduled.
fn scheduling_error(status: &PodStatus) -> Option<String> {
    let condition = condition(status, "PodScheduled").filter(|scheduled| scheduled.status == "False")?;
    Some(condition.message.clone().unwrap_or_default())
}

/// Returns why it has ended permanently, whatever its containers' restart policy: eviction or node shutdown.
fn termination_message(status: &PodStatus) -> Option<String> {
    let phase = status.phase.as_deref().filter(|phase| ["Failed", "Succeeded"].contains(phase))?;
    let words = [&status.reason, &status.message].into_iter().flatten().map(|word| word.trim());
    let words = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(": ");
    Some(if words.is_empty() { phase.to_owned() } else { words })
}

fn has_fetched(status: &PodStatus) -> bool {
    let fetch = status.init_container_statuses.iter().flatten().find(|container| container.name == "fetch");
    let ended = fetch.and_then(|fetch| fetch.state.as_ref()?.terminated.as_ref());
    ended.is_some_and(|ended| ended.exit_code == 0)
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

fn waiting_failure(status: &PodStatus) -> Option<String> {
    containers(status).find_map(stuck_reason)
}

/// Returns the last exit of a container that is not ready, if that was an error.
fn last_restart_message(status: &PodStatus) -> Option<String> {
    containers(status).filter(|container| !container.ready).find_map(|container| {
        let now = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        let ended = now.or(last).filter(|ended| ended.exit_code != 0)?;
        let why = last_line(ended).map_or_else(|| format!("exit code {}", ended.exit_code), str::to_owned);
        Some(format!("container {}: {why}", container.name))
    })
}

/// Returns the last line of a container's log, which contains the reason of its exit.
fn last_line(ended: &ContainerStateTerminated) -> Option<&str> {
    ended.message.as_deref()?.trim().lines().next_back()
}

fn stuck_reason(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| FATAL_WAITING_REASONS.contains(reason))?;
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let message = last.and_then(last_line).or(waiting.message.as_deref());
    Some(format!("container {}: {reason}: {}", container.name, message.unwrap_or_default()))
}

/// The state of an inspection pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Its tenant.
    pub tenant: String,
    /// Uid of that tenant: another one of the same name may have another model.
    pub tenant_uid: String,
    /// Its own uid.
    pub pod_uid: String,
    /// It has an address, so that no external cause prevents its start.
    pub has_started: bool,
    /// Its report, or why it has none; `None` = still running.
    pub result: Option<Result<Geometry, wire::GeometryError>>,
}

/// Returns the relevant parts of an inspection's pod; `None` = it is no inspection's pod.
pub fn inspection(pod: &Pod) -> Option<Inspection> {
    let labels = pod.metadata.labels.as_ref()?;
    let (tenant, tenant_uid) = (labels.get(TENANT)?.clone(), labels.get(TENANT_UID)?.clone());
    let said = report(pod).or_else(|| pod.status.as_ref().and_then(inspection_blocked));
    // A pod that is being deleted fails for that reason.
    let said = said.filter(|said| said.is_ok() || pod.metadata.deletion_timestamp.is_none());
    let begun = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
    let pod_uid = pod.metadata.uid.clone().unwrap_or_default();
    Some(Inspection { tenant, tenant_uid, pod_uid, has_started: begun, result: said })
}

/// Returns what a pending inspection waits for, if that does not resolve on its own.
fn inspection_blocked(status: &PodStatus) -> Option<Result<Geometry, wire::GeometryError>> {
    let why = waiting_failure(status)
        .or_else(|| scheduling_error(status).map(|why| format!("no node can run the pod: {why}")))?;
    Some(Err(startup_failure(why)))
}

/// A warning about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWarning {
    /// Uid of the pod, or of its controller.
    pub pod_uid: String,
    /// Message of the driver, the kubelet or a controller.
    pub message: String,
}

/// Events about claims that could not be prepared.
pub const PREPARE_FAILURE_SELECTOR: &str = "reason=FailedPrepareDynamicResources,involvedObject.kind=Pod";
/// Events about volumes that could not be mounted, for example because a Secret or a claim is missing.
pub const MOUNT_FAILURE_SELECTOR: &str = "reason=FailedMount,involvedObject.kind=Pod";
/// Events about volumes that are attached to another node, or could not be attached.
pub const ATTACH_FAILURE_SELECTOR: &str = "reason=FailedAttachVolume,involvedObject.kind=Pod";

/// Events about pods of a Deployment that cannot be created: quota, admission policy, missing priority class.
pub const POD_CREATE_FAILURE_SELECTOR: &str = "reason=FailedCreate,involvedObject.kind=ReplicaSet";
/// The same for a Job.
pub const JOB_CREATE_FAILURE_SELECTOR: &str = "reason=FailedCreate,involvedObject.kind=Job";

/// Returns the name under which an event is stored: of a pod or a Job its own, of a ReplicaSet its Deployment's.
pub fn involved_name(of: &ObjectReference) -> Option<String> {
    let name = of.name.as_deref()?;
    let own = if of.kind.as_deref() == Some("ReplicaSet") { name.rsplit_once('-')?.0 } else { name };
    Some(own.to_owned())
}

/// Returns the object of an event and the warning.
pub fn pod_warning(event: &Event) -> Option<(String, PodWarning)> {
    let of = &event.involved_object;
    let message = event.message.clone().unwrap_or_default();
    Some((involved_name(of)?, PodWarning { pod_uid: of.uid.clone().unwrap_or_default(), message }))
}

//! Pods of slots, of each what conditions are made of.

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, Event, ObjectReference, Pod, PodCondition, PodStatus,
};
use sluice_plan::objects::inspect::{report, startup_failure};
use sluice_plan::objects::{FETCHING, KEYS_VERSION, SLOT, TENANT, TENANT_UID};
use sluice_plan::observed::{EndedPod, ObservedPod};
use sluice_wire::geometry::{self as wire, Geometry};

use super::pod_request::requested_bytes;

/// Reasons for which a container waits and which do not pass by themselves.
const FATAL_WAITING_REASONS: [&str; 7] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// What is kept of a slot's pod; `None` = it is no slot's.
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

/// Why no node has taken it.
fn scheduling_error(status: &PodStatus) -> Option<String> {
    let condition = condition(status, "PodScheduled").filter(|scheduled| scheduled.status == "False")?;
    Some(condition.message.clone().unwrap_or_default())
}

/// Why it is over, whatever its containers' restart policy: the kubelet has evicted it, its node has shut down.
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

/// How a container that is not ready ended the last time, where that was an error.
fn last_restart_message(status: &PodStatus) -> Option<String> {
    containers(status).filter(|container| !container.ready).find_map(|container| {
        let now = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        let ended = now.or(last).filter(|ended| ended.exit_code != 0)?;
        let why = last_line(ended).map_or_else(|| format!("exit code {}", ended.exit_code), str::to_owned);
        Some(format!("container {}: {why}", container.name))
    })
}

/// The end of a container's log says in its last line why it ended.
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

/// What a pod of an inspection said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Its tenant.
    pub tenant: String,
    /// Uid of that tenant: another one of the same name may have another model.
    pub tenant_uid: String,
    /// Its own uid.
    pub pod_uid: String,
    /// It has an address: nothing hinders it from the outside any more.
    pub has_started: bool,
    /// What it said, or why it says nothing; `None` = it is on its way.
    pub result: Option<Result<Geometry, wire::GeometryError>>,
}

/// What is kept of an inspection's pod; `None` = it is none.
pub fn inspection(pod: &Pod) -> Option<Inspection> {
    let labels = pod.metadata.labels.as_ref()?;
    let (tenant, tenant_uid) = (labels.get(TENANT)?.clone(), labels.get(TENANT_UID)?.clone());
    let said = report(pod).or_else(|| pod.status.as_ref().and_then(inspection_blocked));
    // One that is told to go fails for that.
    let said = said.filter(|said| said.is_ok() || pod.metadata.deletion_timestamp.is_none());
    let begun = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
    let pod_uid = pod.metadata.uid.clone().unwrap_or_default();
    Some(Inspection { tenant, tenant_uid, pod_uid, has_started: begun, result: said })
}

/// What an inspection that has not begun waits for, where that does not pass by itself.
fn inspection_blocked(status: &PodStatus) -> Option<Result<Geometry, wire::GeometryError>> {
    let why = waiting_failure(status)
        .or_else(|| scheduling_error(status).map(|why| format!("no node takes it: {why}")))?;
    Some(Err(startup_failure(why)))
}

/// What could not be done for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWarning {
    /// Uid of the pod, or of what was to make it.
    pub pod_uid: String,
    /// What the driver, the kubelet or a controller said.
    pub message: String,
}

/// Events that tell of a claim that could not be prepared.
pub const PREPARE_FAILURE_SELECTOR: &str = "reason=FailedPrepareDynamicResources,involvedObject.kind=Pod";
/// Events that tell of a volume that could not be mounted: a Secret or a claim that is not there, for one.
pub const MOUNT_FAILURE_SELECTOR: &str = "reason=FailedMount,involvedObject.kind=Pod";
/// Events that tell of a volume that another node has, or that could not be brought to this one.
pub const ATTACH_FAILURE_SELECTOR: &str = "reason=FailedAttachVolume,involvedObject.kind=Pod";

/// Events that tell of pods of a Deployment that cannot be made: a quota, an admission policy, a priority class that is not there.
pub const POD_CREATE_FAILURE_SELECTOR: &str = "reason=FailedCreate,involvedObject.kind=ReplicaSet";
/// The same of a Job.
pub const JOB_CREATE_FAILURE_SELECTOR: &str = "reason=FailedCreate,involvedObject.kind=Job";

/// Under whose name what an event tells is looked for: that of a pod or a Job is its own, of a ReplicaSet its Deployment's.
pub fn involved_name(of: &ObjectReference) -> Option<String> {
    let name = of.name.as_deref()?;
    let own = if of.kind.as_deref() == Some("ReplicaSet") { name.rsplit_once('-')?.0 } else { name };
    Some(own.to_owned())
}

/// Whom an event is about, and why.
pub fn pod_warning(event: &Event) -> Option<(String, PodWarning)> {
    let of = &event.involved_object;
    let message = event.message.clone().unwrap_or_default();
    Some((involved_name(of)?, PodWarning { pod_uid: of.uid.clone().unwrap_or_default(), message }))
}

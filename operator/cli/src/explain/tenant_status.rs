//! Describes the conditions of a ModelTenant and its Events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sluice_types::ModelTenant;
use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::SlotStatus;

use crate::cluster::EventSummary;
use sluice_page::text::formatting::age;

/// Maximum number of events shown.
const MAX_EVENTS: usize = 10;

/// Returns whether the tenant is ready, each condition, advice, and its slots.
pub fn summary(tenant: &ModelTenant, now_unix_ms: u64) -> Vec<String> {
    let conditions = tenant.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut lines = vec![headline(tenant, conditions)];
    lines.extend(stale_status_note(tenant));
    lines.extend(conditions.iter().map(|condition| condition_row(condition, now_unix_ms)));
    lines.extend(advice(conditions).map(|advice| format!("What to do: {advice}.")));
    let slots = tenant.status.as_ref().map_or(&[][..], |status| &status.slots);
    lines.extend(slots.iter().map(slot_line));
    lines
}

fn headline(tenant: &ModelTenant, conditions: &[Condition]) -> String {
    let metadata = &tenant.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let title = format!("{}/{}", text(&metadata.namespace), text(&metadata.name));
    if metadata.deletion_timestamp.is_some() {
        return format!("{title} is being deleted.");
    }
    if tenant.spec.suspend {
        return format!("{title} is suspended (spec.suspend): it has no pods and refuses requests.");
    }
    if tenant.spec.replicas == 0 {
        return format!("{title} has no slots (spec.replicas is 0): it refuses requests.");
    }
    match find_condition(conditions, ConditionType::Ready) {
        None => format!(
            "{title}: no operator has reconciled it yet. Is an operator running that watches this namespace?"
        ),
        Some(ready) if ready.status == "True" => format!("{title} is ready."),
        Some(ready) => format!("{title} is not ready: {}", condition_message(ready)),
    }
}

/// Returns a note if the status is about an older spec.
fn stale_status_note(tenant: &ModelTenant) -> Option<String> {
    let seen = tenant.status.as_ref()?.observed_generation?;
    let written = tenant.metadata.generation?;
    (seen < written).then(|| {
        format!(
            "The operator has not reconciled the last change yet (generation {written}; the last reconciled \
             one is {seen})."
        )
    })
}

fn condition_row(condition: &Condition, now_unix_ms: u64) -> String {
    let since = u64::try_from(condition.last_transition_time.0.as_millisecond()).unwrap_or(0);
    let since = age(now_unix_ms.saturating_sub(since));
    let why = match condition_message(condition) {
        nothing if nothing == Reason::AsExpected.as_str() => String::new(),
        why => format!("  {why}"),
    };
    format!("  {:<17} {:<8} for {since}{why}", condition.type_, condition.status)
}

fn condition_message(condition: &Condition) -> String {
    match condition.message.as_str() {
        "" => condition.reason.clone(),
        message => format!("{}: {message}", condition.reason),
    }
}

fn find_condition(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Returns advice on the reason of the summary; `None` = no problem, or the message is sufficient.
fn advice(conditions: &[Condition]) -> Option<&'static str> {
    let ready = find_condition(conditions, ConditionType::Ready).filter(|ready| ready.status != "True")?;
    let reason = Reason::ALL.iter().find(|reason| reason.as_str() == ready.reason)?;
    reason_advice(*reason)
}

/// The pool has no GPU with enough capacity.
const NO_CAPACITY_ADVICE: &str = "add GPUs to the pool, lower memory.guaranteedKv or raise memory.maxRemappedPercent of tenants \
    there, or give this one a higher priority before others are placed";
/// No GPU is large enough.
const GPU_TOO_SMALL_ADVICE: &str = "lower memory.guaranteedKv, raise memory.maxRemappedPercent, use a \
                                    larger GPU, or create the tenant again with a lower model.maxModelLen";
/// The source does not provide the model.
const SOURCE_ADVICE: &str = "check the credential of the source; to change the repository, revision, bucket \
                             or path, create the tenant again, because model is immutable";
/// A sidecar hangs.
const HANG_ADVICE: &str = "wait: the supervisor of its engine or the kubelet kills the sidecar within a \
                           minute, and it restarts; if this does not end, delete the pod";

/// The match is exhaustive, so that a new reason cannot be forgotten.
const fn reason_advice(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::AsExpected
        | Reason::TenantsRemain
        | Reason::MpsFault
        | Reason::EngineHung
        | Reason::PeerHung
        | Reason::DirectiveNotTaken => {
            return None;
        }
        Reason::SidecarHung => HANG_ADVICE,
        Reason::NotObserved => "check that the operator runs: it has not reconciled this object yet",
        Reason::Unschedulable => NO_CAPACITY_ADVICE,
        Reason::ModelLargerThanGpu => GPU_TOO_SMALL_ADVICE,
        Reason::ChunkTooSmall => "raise device.host.chunkBytes of the pool",
        Reason::ContextDoesNotFit => {
            "raise memory.kvLimit, or create the tenant again with a lower model.maxModelLen"
        }
        Reason::PoolNotFound => "apply the pool in the same namespace; poolRef is immutable",
        Reason::PoolTerminating => "apply a pool of that name again when it is deleted; poolRef is immutable",
        Reason::GroupNotFound => "name a group of the pool in spec.gpuGroup",
        Reason::LocalOnly => {
            "create the tenant again with another source than File, and use a Secret for the keys"
        }
        Reason::EngineImageMissing => "name an image of vLLM in spec.engine.image",
        Reason::ImageVolumesUnsupported => {
            "create the tenant again with a PersistentVolumeClaim, HuggingFace or S3 source"
        }
        Reason::ModelUnreadable => SOURCE_ADVICE,
        Reason::ModelUnsupported => {
            "create the tenant again with a Llama or OPT model, or with an engine of kind Vllm and \
             spec.engine.resources.limits.memory"
        }
        Reason::ModelNotInspected => {
            "wait; if this does not end, check the Job that reads the model's headers"
        }
        Reason::InspectionFailed => "check the Job that reads the model's headers, and the log of its pod",
        Reason::NotAllocated => {
            "check the Events of the pod: no node has a free device of the class together with enough CPU and memory"
        }
        Reason::DriverRefused => "check the Events of the claim and the log of the driver on its node",
        Reason::PodsRefused => {
            "fix what the message names: a quota, a limit range, an admission policy, a service account or \
             a priority class"
        }
        Reason::WaitingForMemory => {
            "wait: a peer returns the memory that this tenant owns; sluice top shows which peer holds it"
        }
        Reason::PodNotReady => "wait; if this does not end, check the Events of its pod",
        Reason::PodFailing => "check the logs of the containers of its pod (kubectl logs POD -c sidecar)",
        Reason::Suspended => "set spec.suspend to false",
        Reason::ScaledToZero => "set spec.replicas to 1 or more",
        Reason::NameTaken => "rename or delete the object with this name",
        Reason::ApplyFailed => {
            "read the message: a quota, a policy or a webhook of the cluster refuses the object"
        }
        Reason::NodesNotReady => {
            "check the nodes and their connection to the control plane (kubectl get nodes); tenants continue to serve"
        }
        Reason::UpdateWaits => {
            "wait until no tenant is on the GPU, or set the pool's updatePolicy to Disruptive"
        }
    })
}

fn slot_line(slot: &SlotStatus) -> String {
    let or = |text: &Option<String>, none: &str| text.clone().unwrap_or_else(|| none.to_owned());
    let state = slot.state.map_or("not started".to_owned(), |state| format!("{state:?}"));
    let (gpu, node, pod) =
        (or(&slot.gpu, "no GPU"), or(&slot.node, "no node yet"), or(&slot.pod, "no pod yet"));
    format!("  slot {}: {state} on {gpu}, {node}, {pod}", slot.name)
}

/// Formats the last events, oldest first.
pub fn event_lines(events: &Result<Vec<EventSummary>, String>, now_unix_ms: u64) -> Vec<String> {
    match events {
        Err(problem) => vec![String::new(), format!("Its Events could not be read: {problem}")],
        Ok(events) if events.is_empty() => Vec::new(),
        Ok(events) => {
            let last = &events[events.len().saturating_sub(MAX_EVENTS)..];
            let lines = last.iter().map(|event| event_line(event, now_unix_ms));
            [String::new(), "Events:".to_owned()].into_iter().chain(lines).collect()
        }
    }
}

fn event_line(event: &EventSummary, now_unix_ms: u64) -> String {
    let at = u64::try_from(event.at_unix_s).unwrap_or(0) * 1000;
    let ago = age(now_unix_ms.saturating_sub(at));
    let kind = if event.is_warning { "warning " } else { "" };
    let times = if event.count > 1 { format!(" ({} times)", event.count) } else { String::new() };
    format!("  {ago} ago: {kind}{}{times}: {}", event.reason, event.note)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_700_000_100_000;

    fn tenant(spec: serde_json::Value, status: serde_json::Value) -> ModelTenant {
        let mut object = json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelTenant",
            "metadata": {"name": "chat", "namespace": "team", "generation": 3},
            "spec": {"poolRef": {"name": "p"},
                     "model": {"source": {"type": "HuggingFace", "huggingFace": {"repo": "a/b"}}}},
            "status": status,
        });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> serde_json::Value {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": "2023-11-14T22:13:20Z"})
    }

    #[test]
    fn unplaced_tenant_gets_reason_and_advice() {
        let conditions = [
            condition("Placed", "False", "Unschedulable", "1 of 1 slot has no GPU"),
            condition("Ready", "False", "Unschedulable", "Placed: 1 of 1 slot has no GPU"),
        ];
        let said =
            summary(&tenant(json!({}), json!({"conditions": conditions, "observedGeneration": 2})), NOW);
        assert_eq!(said[0], "team/chat is not ready: Unschedulable: Placed: 1 of 1 slot has no GPU");
        assert!(said[1].contains("has not reconciled the last change"), "{said:?}");
        assert_eq!(said[2], "  Placed            False    for 100s  Unschedulable: 1 of 1 slot has no GPU");
        assert!(said[4].starts_with("What to do: add GPUs"), "{said:?}");
    }

    #[test]
    fn tenant_with_zero_replicas_is_not_reported_broken() {
        let conditions = json!({"conditions": [condition("Ready", "False", "NotObserved", "")]});
        let suspended = summary(&tenant(json!({"suspend": true}), conditions.clone()), NOW);
        assert!(suspended[0].contains("is suspended"), "{suspended:?}");
        let none = summary(&tenant(json!({"replicas": 0}), conditions), NOW);
        assert!(none[0].contains("spec.replicas is 0"), "{none:?}");
    }

    #[test]
    fn unreconciled_tenant_is_reported() {
        let said = summary(&tenant(json!({}), json!({})), NOW);
        assert_eq!(
            said,
            [
                "team/chat: no operator has reconciled it yet. Is an operator running that watches this namespace?"
            ]
        );
    }

    #[test]
    fn a_ready_tenant_shows_its_slots() {
        let status = json!({
            "conditions": [condition("Ready", "True", "AsExpected", "")],
            "slots": [{"name": "chat-0", "gpu": "p-a-0", "node": "n1", "pod": "chat-0-x", "state": "Idle"}],
        });
        let said = summary(&tenant(json!({}), status), NOW);
        assert_eq!(said[0], "team/chat is ready.");
        assert_eq!(said[1], "  Ready             True     for 100s");
        assert_eq!(said[2], "  slot chat-0: Idle on p-a-0, n1, chat-0-x");
    }

    #[test]
    fn only_last_events_are_printed() {
        let event = |n: i64| EventSummary {
            at_unix_s: 1_700_000_000 + n,
            is_warning: n == 11,
            count: 2,
            reason: "Placed".into(),
            note: format!("n {n}"),
        };
        let said = event_lines(&Ok((0..12).map(event).collect()), NOW);
        assert_eq!(said.len(), 2 + MAX_EVENTS);
        assert_eq!(said[11], "  89s ago: warning Placed (2 times): n 11");
        assert!(event_lines(&Ok(Vec::new()), NOW).is_empty());
        assert!(event_lines(&Err("forbidden".into()), NOW)[1].contains("forbidden"));
    }
}

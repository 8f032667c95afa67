//! The status of a tenant: its conditions, and where its slots are.

mod degraded;
mod device_request;
mod hang;
mod mps_fault;
mod pool_status;
mod slot_view;
mod time;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::{
    Elasticity, EngineKind, ModelTenantStatus, SlotState, SlotStatus, TenantMemoryStatus,
};
use sluice_types::{ModelTenant, Quantity};

use self::degraded::degraded;
pub use self::degraded::has_expiring_reason;
pub use self::hang::is_another_hang;
pub use self::pool_status::{pool_change, pool_status};
use self::slot_view::SlotView;
pub(crate) use self::time::time;
use crate::conditions::{ConditionResult, ConditionResults, ConditionStatus, conditions};
use crate::objects::inspect;
use crate::objects::{SERVE_PORT, claim_name, name, selector};
use crate::observed::{ApplyFailure, SidecarReport};
use crate::plan_context::PlanContext;
use crate::pool_plan::{PoolPlan, SlotPlan, TenantPlan};
use crate::validate::placement_conditions;

/// Returns the status of one of the plan's tenants. `trouble` is the error from applying its objects. Values that
/// only sidecars report keep their previous value until a sidecar reports.
pub fn tenant_status(
    given: &PlanContext<'_>,
    plan: &PoolPlan<'_>,
    planned: &TenantPlan<'_>,
    trouble: Option<&ApplyFailure>,
) -> ModelTenantStatus {
    let tenant = planned.tenant;
    let before = tenant.status.clone().unwrap_or_default();
    let views: Vec<SlotView<'_>> =
        planned.slots.iter().filter_map(|slot| slot_view(given, plan, (planned, slot), trouble)).collect();
    let generation = tenant.metadata.generation.unwrap_or_default();
    let findings = condition_results(plan, planned, &views, trouble);
    let reports: Vec<&SidecarReport> = views.iter().filter_map(|view| view.report).collect();
    let silent = reports.is_empty() && !views.is_empty();
    ModelTenantStatus {
        conditions: conditions(
            ConditionType::OF_TENANT,
            &before.conditions,
            &findings,
            generation,
            &time(given.now),
        ),
        observed_generation: Some(generation),
        url: Some(url(planned)).filter(|_| !trouble.is_some_and(|trouble| trouble.is_service_name_taken)),
        replicas: i32::try_from(views.len()).unwrap_or(i32::MAX),
        selector: Some(selector(tenant)),
        slots: planned.slots.iter().map(|slot| slot_status(planned, slot, &views, &before)).collect(),
        memory: if silent { before.memory } else { memory_status(&reports) },
        idle_since: if silent { before.idle_since } else { idle_since(&reports) },
        last_remap_time: reports
            .iter()
            .filter_map(|report| report.last_remap)
            .max()
            .map(time)
            .or(before.last_remap_time),
        model: planned.inspected.clone(),
    }
}

fn url(planned: &TenantPlan<'_>) -> String {
    let namespace = planned.tenant.metadata.namespace.as_deref().unwrap_or_default();
    format!("http://{}.{namespace}.svc:{SERVE_PORT}", name(planned.tenant))
}

fn slot_view<'a>(
    given: &PlanContext<'a>,
    plan: &'a PoolPlan<'_>,
    (planned, slot): (&TenantPlan<'_>, &SlotPlan),
    trouble: Option<&ApplyFailure>,
) -> Option<SlotView<'a>> {
    let on = &plan.gpus[*slot.gpu_index.as_ref().ok()?];
    let (tenant, claim) = (name(planned.tenant), claim_name(&on.gpu, on.epoch?.number));
    let (seen, pod) = (given.observed, plan.pod(tenant, slot.index, &claim));
    let unmade = seen.pod_creation_errors.get(&(tenant.to_owned(), slot.index));
    let absent = if pod.is_none() { no_pod_condition(trouble, unmade) } else { None };
    let key = (tenant.to_owned(), on.gpu.name.clone());
    let (gpu, report) = (on.gpu.name.as_str(), seen.reports.get(&key));
    let namespace = planned.tenant.metadata.namespace.as_deref().unwrap_or_default();
    let made_at = pod.filter(|pod| pod.is_current()).map(|pod| pod.created_at);
    let own = hang::SlotIdentity { namespace, tenant, gpu, created_at: made_at };
    Some(SlotView {
        name: format!("{tenant}-{}", slot.index),
        gpu,
        pod,
        hangs: hang::of(own, report, plan.peer_reports(gpu), given.now),
        fault: mps_fault::detect(gpu, on.gpu.settings.sharing.mode, seen, given.now),
        claim: plan.claim(&claim),
        report,
        device_request: given.pool.and_then(|pool| device_request::fields(name(pool), &on.gpu)),
        directive_error: seen.directive_errors.get(&key),
        no_pod_condition: absent,
    })
}

/// Returns why a slot has no pod: its parent object could not be applied, or cannot create it.
fn no_pod_condition(trouble: Option<&ApplyFailure>, unmade: Option<&String>) -> Option<ConditionResult> {
    let refused = trouble.map(|trouble| ConditionResult::not_met(trouble.reason(), trouble.message.as_str()));
    refused.or_else(|| {
        Some(ConditionResult::not_met(Reason::PodsRefused, format!("the pod cannot be created: {}", unmade?)))
    })
}

fn slot_status(
    planned: &TenantPlan<'_>,
    slot: &SlotPlan,
    views: &[SlotView<'_>],
    before: &ModelTenantStatus,
) -> SlotStatus {
    let own = format!("{}-{}", name(planned.tenant), slot.index);
    let view = views.iter().find(|view| view.name == own);
    let pod = view.and_then(|view| view.pod);
    let report = view.and_then(|view| view.report);
    let before = before.slots.iter().find(|known| known.name == own);
    // The last report of the same pod is valid until its sidecar reports again.
    let before = before.filter(|before| before.pod.as_deref() == pod.map(|pod| pod.name.as_str()));
    let loading = pod.filter(|pod| !pod.is_ready).map(|_| SlotState::Loading);
    SlotStatus {
        gpu: view.map(|view| view.gpu.to_owned()),
        node: pod.and_then(|pod| pod.node.clone()),
        pod: pod.map(|pod| pod.name.clone()),
        state: report.map(|report| report.state).or(loading).or(before.and_then(|before| before.state)),
        elasticity: pod.map(|_| elasticity(planned.tenant)),
        name: own,
    }
}

/// A proxied engine releases all of its memory, by sleeping, or none.
fn elasticity(tenant: &ModelTenant) -> Elasticity {
    match tenant.spec.engine.kind {
        EngineKind::Native => Elasticity::Layers,
        EngineKind::Vllm => Elasticity::Whole,
    }
}

fn condition_results(
    plan: &PoolPlan<'_>,
    planned: &TenantPlan<'_>,
    views: &[SlotView<'_>],
    trouble: Option<&ApplyFailure>,
) -> ConditionResults {
    let slots = planned.slots.iter().map(|slot| {
        let on = slot.gpu_index.as_ref().map(|gpu| plan.gpus[*gpu].gpu.name.as_str());
        (slot.index, on)
    });
    let (refused, found) = placement_conditions(slots);
    let accepted = refused.unwrap_or_else(|| planned.accepted());
    let degraded = degraded(trouble, views);
    let mut all =
        ConditionResults::from([(ConditionType::Accepted, accepted), (ConditionType::Degraded, degraded)]);
    if let Some(refusal) = &planned.inspection_error {
        all.insert(ConditionType::Placed, inspect::inspection_conditions(refusal).1);
        return all;
    }
    if !planned.is_accepted() {
        return all;
    }
    let message =
        if found.status == ConditionStatus::True { overcommit_message(plan, planned) } else { None };
    all.insert(ConditionType::Placed, ConditionResult { message: message.unwrap_or(found.message), ..found });
    if !planned.slots.is_empty() && views.is_empty() {
        return all;
    }
    all.insert(ConditionType::DevicesAllocated, worst(views, devices_condition));
    all.insert(ConditionType::WeightsLoaded, worst(views, weights_condition));
    all.insert(ConditionType::Serving, serving_condition(planned, views, trouble));
    all
}

/// Returns the message for a tenant on a GPU whose floors exceed its memory: some have grown since placement.
fn overcommit_message(plan: &PoolPlan<'_>, planned: &TenantPlan<'_>) -> Option<String> {
    let own = planned.slots.iter().filter_map(|slot| slot.gpu_index.as_ref().ok());
    let beyond = |gpu: &usize| {
        let floor = |slot: &SlotPlan| slot.floor_bytes.saturating_add(slot.demand.context_bytes);
        let floors = plan.slots_on(*gpu).fold(0_u64, |sum, (_, slot)| sum.saturating_add(floor(slot)));
        let bytes = floors.checked_sub(plan.gpus[*gpu].gpu.expected_bytes()?).filter(|bytes| *bytes > 0)?;
        Some((&plan.gpus[*gpu].gpu.name, bytes))
    };
    let (gpu, bytes) = own.into_iter().find_map(beyond)?;
    Some(format!(
        "the floors of tenants on {gpu} exceed its memory by {bytes} bytes: running tenants stay, no tenant \
         is added, and a tenant that restarts may wait for memory; lower memory.guaranteedKv or raise \
         memory.maxRemappedPercent of a tenant there"
    ))
}

/// Returns the worst finding of the slots: first `False`, then `Unknown`.
fn worst(views: &[SlotView<'_>], find: impl Fn(&SlotView<'_>) -> ConditionResult) -> ConditionResult {
    let rank = |finding: &ConditionResult| match finding.status {
        ConditionStatus::False => 0,
        ConditionStatus::Unknown => 1,
        ConditionStatus::True => 2,
    };
    let found = views.iter().map(|view| (view, find(view))).min_by_key(|(_, finding)| rank(finding));
    match found {
        Some((view, found)) if found.status != ConditionStatus::True => {
            ConditionResult { message: format!("slot {}: {}", view.name, found.message), ..found }
        }
        _ => ConditionResult::as_expected(ConditionStatus::True),
    }
}

fn devices_condition(view: &SlotView<'_>) -> ConditionResult {
    // What another component says, and the fields that it concerns.
    let with_fields = |said: &String| match &view.device_request {
        Some(asked) => format!("{said}; {asked}"),
        None => said.clone(),
    };
    if let Some(refused) = view.pod.and_then(|pod| pod.prepare_error.as_ref()) {
        return ConditionResult::not_met(Reason::DriverRefused, with_fields(refused));
    }
    let allocated = view.claim.is_some_and(|claim| claim.device.is_some());
    match view.pod.and_then(|pod| pod.unschedulable_reason.as_ref()) {
        // The node of an allocated device lacks something else.
        Some(why) if allocated => ConditionResult::not_met(Reason::NotAllocated, why),
        Some(why) => ConditionResult::not_met(Reason::NotAllocated, with_fields(why)),
        None if allocated => ConditionResult::as_expected(ConditionStatus::True),
        None => view.no_pod_condition.clone().unwrap_or_else(|| {
            ConditionResult::unknown(
                Reason::NotAllocated,
                format!("the claim of {} has no device yet", view.gpu),
            )
        }),
    }
}

fn weights_condition(view: &SlotView<'_>) -> ConditionResult {
    if let Some(waits) = view.report.and_then(|report| report.wait_reason.as_ref()) {
        return ConditionResult::not_met(Reason::WaitingForMemory, waits);
    }
    match view.pod {
        Some(pod) if pod.is_ready => ConditionResult::as_expected(ConditionStatus::True),
        _ => not_ready_condition(view),
    }
}

/// Returns the finding for a sidecar that does not answer and that peers report as hung.
fn hang_condition(view: &SlotView<'_>, truth: ConditionStatus) -> Option<ConditionResult> {
    let own = view.hangs.own.as_ref().filter(|_| view.hangs.is_unresponsive)?;
    Some(ConditionResult { status: truth, ..own.finding.clone() })
}

fn not_ready_condition(view: &SlotView<'_>) -> ConditionResult {
    if let Some(hung) = hang_condition(view, ConditionStatus::Unknown) {
        return hung;
    }
    let unknown = || ConditionResult::unknown(Reason::PodNotReady, "there is no pod yet");
    match (view.pod, view.pod.and_then(|pod| pod.failure_reason.as_ref())) {
        (None, _) => view.no_pod_condition.clone().unwrap_or_else(unknown),
        (Some(_), Some(failing)) => ConditionResult::not_met(Reason::PodFailing, failing),
        (Some(pod), None) => {
            let restarts = pod.last_restart_reason.as_ref().map(|why| format!("; it failed before: {why}"));
            let after = pod.predecessor_failure.as_ref().map(|why| format!("; an earlier one ended: {why}"));
            let before = restarts.or(after).unwrap_or_default();
            ConditionResult::unknown(Reason::PodNotReady, format!("pod {} is starting{before}", pod.name))
        }
    }
}

fn serving_condition(
    planned: &TenantPlan<'_>,
    views: &[SlotView<'_>],
    trouble: Option<&ApplyFailure>,
) -> ConditionResult {
    let spec = &planned.tenant.spec;
    if spec.suspend {
        return ConditionResult::not_met(Reason::Suspended, "spec.suspend is set");
    }
    if spec.replicas == 0 {
        return ConditionResult::not_met(Reason::ScaledToZero, "spec.replicas is 0");
    }
    if let Some(taken) = trouble.filter(|trouble| trouble.is_service_name_taken) {
        return ConditionResult::not_met(Reason::NameTaken, taken.message.as_str());
    }
    let serves = |view: &SlotView<'_>| {
        view.pod.is_some_and(|pod| pod.is_ready)
            && view.report.is_none_or(|report| report.failure.is_none())
            && !view.hangs.is_unresponsive
    };
    if views.iter().any(serves) {
        return ConditionResult::as_expected(ConditionStatus::True);
    }
    let failure = views.iter().find_map(|view| view.report?.failure.clone());
    match failure {
        Some(failure) => ConditionResult::not_met(Reason::PodFailing, failure),
        None => worst(views, |view| ConditionResult {
            status: ConditionStatus::False,
            ..not_ready_condition(view)
        }),
    }
}

fn memory_status(reports: &[&SidecarReport]) -> Option<TenantMemoryStatus> {
    let sum = |part: fn(&TenantMemoryStatus) -> &Quantity| {
        Quantity::from_bytes(reports.iter().map(|report| part(&report.memory).bytes()).sum())
    };
    (!reports.is_empty()).then(|| TenantMemoryStatus {
        weights: sum(|memory| &memory.weights),
        kv: sum(|memory| &memory.kv),
        host_kv: sum(|memory| &memory.host_kv),
        remapped_layers: reports.iter().map(|report| report.memory.remapped_layers).sum(),
    })
}

/// Since when all slots are idle.
fn idle_since(reports: &[&SidecarReport]) -> Option<Time> {
    let all: Option<Vec<i64>> = reports.iter().map(|report| report.idle_since).collect();
    all?.into_iter().max().map(time)
}

/// How much a new status differs from the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusChange {
    /// No difference.
    None,
    /// Only numbers and messages, which may be written later.
    Figures,
    /// Conditions or slot placement.
    Conditions,
}

/// Compares `after` with `before`.
pub fn status_change(before: Option<&ModelTenantStatus>, after: &ModelTenantStatus) -> StatusChange {
    let Some(before) = before else { return StatusChange::Conditions };
    if before == after {
        return StatusChange::None;
    }
    let core = |status: &ModelTenantStatus| {
        let slots: Vec<_> =
            status.slots.iter().map(|slot| (slot.name.clone(), slot.gpu.clone(), slot.pod.clone())).collect();
        (slots, status.observed_generation, status.replicas, status.model.clone())
    };
    let same = core(before) == core(after) && has_same_conditions(&before.conditions, &after.conditions);
    if same { StatusChange::Figures } else { StatusChange::Conditions }
}

pub(crate) fn has_same_conditions(before: &[Condition], after: &[Condition]) -> bool {
    before.len() == after.len()
        && before.iter().zip(after).all(|(before, after)| {
            (&before.type_, &before.status, &before.reason) == (&after.type_, &after.status, &after.reason)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_proxied_engine_gives_up_all_of_its_memory_or_nothing() {
        let of = |kind: &str| {
            let source = json!({"type": "Image", "image": {"reference": "r"}});
            let spec =
                json!({"poolRef": {"name": "p"}, "model": {"source": source}, "engine": {"kind": kind}});
            let tenant = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ModelTenant", "metadata": {}, "spec": spec});
            elasticity(&serde_json::from_value(tenant).expect("a tenant"))
        };
        assert_eq!((of("Native"), of("Vllm")), (Elasticity::Layers, Elasticity::Whole));
    }
}

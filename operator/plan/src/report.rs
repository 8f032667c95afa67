//! What is told of a tenant: which of its conditions hold, and where its slots are.

mod degraded;
mod fault;
mod hang;
mod pool;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::{
    Elasticity, EngineKind, ModelTenantStatus, SlotState, SlotStatus, TenantMemoryStatus,
};
use sluice_types::{ModelTenant, Quantity};

use self::degraded::degraded;
pub use self::degraded::passes;
use self::hang::Hangs;
pub use self::hang::is_another_hang;
pub use self::pool::{pool_change, pool_status};
use crate::accept::placed;
use crate::objects::inspect;
use crate::objects::{SERVE_PORT, claim_name, name, selector};
use crate::seen::{ClaimSeen, PodSeen, Report, Trouble};
use crate::status::{Finding, Findings, Truth, conditions};
use crate::unit::{Given, Plan, SlotPlan, TenantPlan};

/// A slot that has a GPU, and all that is seen of it.
struct View<'a> {
    name: String,
    gpu: &'a str,
    claim: Option<&'a ClaimSeen>,
    pod: Option<&'a PodSeen>,
    report: Option<&'a Report>,
    /// What is told of hangs to it.
    hangs: Hangs,
    /// What ended the engines of all on its GPU.
    fault: Option<String>,
    /// Why its sidecar does not take its directive.
    untold: Option<&'a String>,
    /// Why it has no pod, where that is known.
    absent: Option<Finding>,
}

/// The status of one of the plan's tenants. `trouble` is what went wrong when its objects were applied. What only sidecars tell stays as it was while they have told nothing.
pub fn tenant_status(
    given: &Given<'_>,
    plan: &Plan<'_>,
    planned: &TenantPlan<'_>,
    trouble: Option<&Trouble>,
) -> ModelTenantStatus {
    let tenant = planned.tenant;
    let before = tenant.status.clone().unwrap_or_default();
    let views: Vec<View<'_>> =
        planned.slots.iter().filter_map(|slot| view(given, plan, (planned, slot), trouble)).collect();
    let generation = tenant.metadata.generation.unwrap_or_default();
    let findings = findings(plan, planned, &views, trouble);
    let told: Vec<&Report> = views.iter().filter_map(|view| view.report).collect();
    let silent = told.is_empty() && !views.is_empty();
    ModelTenantStatus {
        conditions: conditions(
            ConditionType::OF_TENANT,
            &before.conditions,
            &findings,
            generation,
            &time(given.now),
        ),
        observed_generation: Some(generation),
        url: Some(url(planned)).filter(|_| !trouble.is_some_and(|trouble| trouble.service_taken)),
        replicas: i32::try_from(views.len()).unwrap_or(i32::MAX),
        selector: Some(selector(tenant)),
        slots: planned.slots.iter().map(|slot| slot_status(planned, slot, &views, &before)).collect(),
        memory: if silent { before.memory } else { memory(&told) },
        idle_since: if silent { before.idle_since } else { idle_since(&told) },
        last_remap_time: told
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

pub(crate) fn time(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn view<'a>(
    given: &Given<'a>,
    plan: &'a Plan<'_>,
    (planned, slot): (&TenantPlan<'_>, &SlotPlan),
    trouble: Option<&Trouble>,
) -> Option<View<'a>> {
    let on = &plan.gpus[*slot.on.as_ref().ok()?];
    let (tenant, claim) = (name(planned.tenant), claim_name(&on.gpu, on.epoch?.number));
    let (seen, pod) = (given.seen, plan.pod(tenant, slot.index, &claim));
    let unmade = seen.unmade.get(&(tenant.to_owned(), slot.index));
    let absent = if pod.is_none() { absent(trouble, unmade) } else { None };
    let key = (tenant.to_owned(), on.gpu.name.clone());
    let (gpu, report) = (on.gpu.name.as_str(), seen.reports.get(&key));
    let namespace = planned.tenant.metadata.namespace.as_deref().unwrap_or_default();
    let made_at = pod.filter(|pod| pod.stays()).map(|pod| pod.made_at);
    let own = hang::Slot { namespace, tenant, gpu, made_at };
    Some(View {
        name: format!("{tenant}-{}", slot.index),
        gpu,
        pod,
        hangs: hang::of(own, report, plan.witnesses(gpu), given.now),
        fault: fault::of(gpu, on.gpu.settings.sharing.mode, seen, given.now),
        claim: plan.claim(&claim),
        report,
        untold: seen.untold.get(&key),
        absent,
    })
}

/// Why a slot has no pod: what was to make it could not be applied, or cannot make it.
fn absent(trouble: Option<&Trouble>, unmade: Option<&String>) -> Option<Finding> {
    let refused = trouble.map(|trouble| Finding::no(reason_of(trouble), trouble.message.as_str()));
    refused.or_else(|| Some(Finding::no(Reason::PodsRefused, format!("no pod can be made: {}", unmade?))))
}

const fn reason_of(trouble: &Trouble) -> Reason {
    if trouble.name_taken { Reason::NameTaken } else { Reason::ApplyFailed }
}

fn slot_status(
    planned: &TenantPlan<'_>,
    slot: &SlotPlan,
    views: &[View<'_>],
    before: &ModelTenantStatus,
) -> SlotStatus {
    let own = format!("{}-{}", name(planned.tenant), slot.index);
    let view = views.iter().find(|view| view.name == own);
    let pod = view.and_then(|view| view.pod);
    let report = view.and_then(|view| view.report);
    let before = before.slots.iter().find(|known| known.name == own);
    // What a sidecar said of the same pod holds until it says something else.
    let before = before.filter(|before| before.pod.as_deref() == pod.map(|pod| pod.name.as_str()));
    let loading = pod.filter(|pod| !pod.ready).map(|_| SlotState::Loading);
    SlotStatus {
        gpu: view.map(|view| view.gpu.to_owned()),
        node: pod.and_then(|pod| pod.node.clone()),
        pod: pod.map(|pod| pod.name.clone()),
        state: report.map(|report| report.state).or(loading).or(before.and_then(|before| before.state)),
        elasticity: pod.map(|_| elasticity(planned.tenant)),
        name: own,
    }
}

/// A proxied engine gives up all of its memory, by sleeping, or nothing.
fn elasticity(tenant: &ModelTenant) -> Elasticity {
    match tenant.spec.engine.kind {
        EngineKind::Native => Elasticity::Layers,
        EngineKind::Vllm => Elasticity::Whole,
    }
}

fn findings(
    plan: &Plan<'_>,
    planned: &TenantPlan<'_>,
    views: &[View<'_>],
    trouble: Option<&Trouble>,
) -> Findings {
    let slots = planned.slots.iter().map(|slot| {
        let on = slot.on.as_ref().map(|gpu| plan.gpus[*gpu].gpu.name.as_str());
        (slot.index, on)
    });
    let (refused, found) = placed(slots);
    let accepted = refused.unwrap_or_else(|| planned.accepted());
    let degraded = degraded(trouble, views);
    let mut all = Findings::from([(ConditionType::Accepted, accepted), (ConditionType::Degraded, degraded)]);
    if let Some(refusal) = &planned.refusal {
        all.insert(ConditionType::Placed, inspect::refused(refusal).1);
        return all;
    }
    if !planned.is_accepted() {
        return all;
    }
    let message = if found.truth == Truth::True { crowded(plan, planned) } else { None };
    all.insert(ConditionType::Placed, Finding { message: message.unwrap_or(found.message), ..found });
    if !planned.slots.is_empty() && views.is_empty() {
        return all;
    }
    all.insert(ConditionType::DevicesAllocated, worst(views, devices));
    all.insert(ConditionType::WeightsLoaded, worst(views, weights));
    all.insert(ConditionType::Serving, serving(planned, views, trouble));
    all
}

/// What is told of a tenant on a GPU that the floors of its slots exceed: some have grown since all of them were placed there.
fn crowded(plan: &Plan<'_>, planned: &TenantPlan<'_>) -> Option<String> {
    let own = planned.slots.iter().filter_map(|slot| slot.on.as_ref().ok());
    let beyond = |gpu: &usize| {
        let floor = |slot: &SlotPlan| slot.floor_bytes.saturating_add(slot.demand.context_bytes);
        let floors = plan.on(*gpu).fold(0_u64, |sum, (_, slot)| sum.saturating_add(floor(slot)));
        let bytes = floors.checked_sub(plan.gpus[*gpu].gpu.expected_bytes()?).filter(|bytes| *bytes > 0)?;
        Some((&plan.gpus[*gpu].gpu.name, bytes))
    };
    let (gpu, bytes) = own.into_iter().find_map(beyond)?;
    Some(format!(
        "floors on {gpu} have grown {bytes} bytes beyond it: who serves there stays, nobody comes, and whoever starts again may \
         wait for memory; lower memory.guaranteedKv or raise memory.maxRemappedPercent of a tenant there"
    ))
}

/// What is worst among the slots: something that does not hold, then what nobody knows.
fn worst(views: &[View<'_>], find: impl Fn(&View<'_>) -> Finding) -> Finding {
    let rank = |finding: &Finding| match finding.truth {
        Truth::False => 0,
        Truth::Unknown => 1,
        Truth::True => 2,
    };
    let found = views.iter().map(|view| (view, find(view))).min_by_key(|(_, finding)| rank(finding));
    match found {
        Some((view, found)) if found.truth != Truth::True => {
            Finding { message: format!("slot {}: {}", view.name, found.message), ..found }
        }
        _ => Finding::as_expected(Truth::True),
    }
}

fn devices(view: &View<'_>) -> Finding {
    if let Some(refused) = view.pod.and_then(|pod| pod.refused.as_ref()) {
        return Finding::no(Reason::DriverRefused, refused);
    }
    let allocated = view.claim.is_some_and(|claim| claim.device.is_some());
    match view.pod.and_then(|pod| pod.unscheduled.as_ref()) {
        Some(why) => Finding::no(Reason::NotAllocated, why),
        None if allocated => Finding::as_expected(Truth::True),
        None => view.absent.clone().unwrap_or_else(|| {
            Finding::unknown(Reason::NotAllocated, format!("the claim of {} has no device yet", view.gpu))
        }),
    }
}

fn weights(view: &View<'_>) -> Finding {
    if let Some(waits) = view.report.and_then(|report| report.waits.as_ref()) {
        return Finding::no(Reason::WaitingForMemory, waits);
    }
    match view.pod {
        Some(pod) if pod.ready => Finding::as_expected(Truth::True),
        _ => not_ready(view),
    }
}

/// Of a sidecar that does not answer, and of which neighbours say that it hangs.
fn hung(view: &View<'_>, truth: Truth) -> Option<Finding> {
    let own = view.hangs.own.as_ref().filter(|_| view.hangs.silent)?;
    Some(Finding { truth, ..own.finding.clone() })
}

fn not_ready(view: &View<'_>) -> Finding {
    if let Some(hung) = hung(view, Truth::Unknown) {
        return hung;
    }
    let unknown = || Finding::unknown(Reason::PodNotReady, "there is no pod yet");
    match (view.pod, view.pod.and_then(|pod| pod.failing.as_ref())) {
        (None, _) => view.absent.clone().unwrap_or_else(unknown),
        (Some(_), Some(failing)) => Finding::no(Reason::PodFailing, failing),
        (Some(pod), None) => {
            let restarts = pod.restarts.as_ref().map(|why| format!("; it failed before: {why}"));
            let after = pod.after.as_ref().map(|why| format!("; an earlier one ended: {why}"));
            let before = restarts.or(after).unwrap_or_default();
            Finding::unknown(Reason::PodNotReady, format!("pod {} is starting{before}", pod.name))
        }
    }
}

fn serving(planned: &TenantPlan<'_>, views: &[View<'_>], trouble: Option<&Trouble>) -> Finding {
    let spec = &planned.tenant.spec;
    if spec.suspend {
        return Finding::no(Reason::Suspended, "spec.suspend is set");
    }
    if spec.replicas == 0 {
        return Finding::no(Reason::ScaledToZero, "spec.replicas is 0");
    }
    if let Some(taken) = trouble.filter(|trouble| trouble.service_taken) {
        return Finding::no(Reason::NameTaken, taken.message.as_str());
    }
    let serves = |view: &View<'_>| {
        view.pod.is_some_and(|pod| pod.ready)
            && view.report.is_none_or(|report| report.failure.is_none())
            && !view.hangs.silent
    };
    if views.iter().any(serves) {
        return Finding::as_expected(Truth::True);
    }
    let failure = views.iter().find_map(|view| view.report?.failure.clone());
    match failure {
        Some(failure) => Finding::no(Reason::PodFailing, failure),
        None => worst(views, |view| Finding { truth: Truth::False, ..not_ready(view) }),
    }
}

fn memory(told: &[&Report]) -> Option<TenantMemoryStatus> {
    let sum = |part: fn(&TenantMemoryStatus) -> &Quantity| {
        Quantity::from_bytes(told.iter().map(|report| part(&report.memory).bytes()).sum())
    };
    (!told.is_empty()).then(|| TenantMemoryStatus {
        weights: sum(|memory| &memory.weights),
        kv: sum(|memory| &memory.kv),
        host_kv: sum(|memory| &memory.host_kv),
        remapped_layers: told.iter().map(|report| report.memory.remapped_layers).sum(),
    })
}

/// Since when all slots are idle.
fn idle_since(told: &[&Report]) -> Option<Time> {
    let all: Option<Vec<i64>> = told.iter().map(|report| report.idle_since).collect();
    all?.into_iter().max().map(time)
}

/// How much a status that is to be written differs from the one that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Not at all.
    None,
    /// In figures and wording, which may wait.
    Figures,
    /// In what holds, and where slots are.
    Conditions,
}

/// How `after` differs from `before`.
pub fn change(before: Option<&ModelTenantStatus>, after: &ModelTenantStatus) -> Change {
    let Some(before) = before else { return Change::Conditions };
    if before == after {
        return Change::None;
    }
    let core = |status: &ModelTenantStatus| {
        let slots: Vec<_> =
            status.slots.iter().map(|slot| (slot.name.clone(), slot.gpu.clone(), slot.pod.clone())).collect();
        (slots, status.observed_generation, status.replicas, status.model.clone())
    };
    let same = core(before) == core(after) && alike(&before.conditions, &after.conditions);
    if same { Change::Figures } else { Change::Conditions }
}

pub(crate) fn alike(before: &[Condition], after: &[Condition]) -> bool {
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

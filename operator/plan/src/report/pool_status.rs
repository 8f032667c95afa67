//! The status of a pool: its conditions and its GPUs.

use std::collections::BTreeMap;

use sluice_common::text::counted;
use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::pool::{GpuPoolStatus, GpuStatus};
use sluice_types::rules::MAX_GPUS;
use sluice_types::{GpuPool, ModelTenant, Quantity};

use super::{StatusChange, has_same_conditions, time};
use crate::conditions::{ConditionResult, ConditionResults, ConditionStatus, conditions};
use crate::directives::{Lender, sort_victims};
use crate::epoch::Epoch;
use crate::objects::{claim_name, name};
use crate::observed::SidecarReport;
use crate::placement::UnplacedReason;
use crate::plan_context::PlanContext;
use crate::pool_plan::PoolPlan;
use crate::spec_convert::victim_rule;
use crate::zone_disruption::ZoneDisruption;

/// Returns the status of the plan's pool.
pub fn pool_status(given: &PlanContext<'_>, plan: &PoolPlan<'_>, pool: &GpuPool) -> GpuPoolStatus {
    let before = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let mut kinds = ConditionType::OF_POOL.to_vec();
    kinds.extend(deleting.then_some(ConditionType::Terminating));
    let findings = condition_results(given, plan);
    let known = before.gpus.iter().map(|gpu| (gpu.name.as_str(), gpu)).collect();
    GpuPoolStatus {
        conditions: conditions(&kinds, &before.conditions, &findings, generation, &time(given.now)),
        observed_generation: Some(generation),
        // GPUs that the pool no longer has are last.
        gpus: (0..plan.gpus.len().min(MAX_GPUS))
            .map(|gpu| gpu_status(given, plan, pool, gpu, &known))
            .collect(),
    }
}

/// Compares `after` with `before`.
pub fn pool_change(before: Option<&GpuPoolStatus>, after: &GpuPoolStatus) -> StatusChange {
    let Some(before) = before else { return StatusChange::Conditions };
    if before == after {
        return StatusChange::None;
    }
    let core = |status: &GpuPoolStatus| {
        let gpu = |gpu: &GpuStatus| {
            (gpu.name.clone(), gpu.claim_name.clone(), gpu.node.clone(), gpu.tenants.clone())
        };
        (status.gpus.iter().map(gpu).collect::<Vec<_>>(), status.observed_generation)
    };
    let same = core(before) == core(after) && has_same_conditions(&before.conditions, &after.conditions);
    if same { StatusChange::Figures } else { StatusChange::Conditions }
}

fn condition_results(given: &PlanContext<'_>, plan: &PoolPlan<'_>) -> ConditionResults {
    let remain = given.tenants.len();
    let message = format!("{remain} tenants still refer to the pool");
    let terminating =
        ConditionResult { status: ConditionStatus::True, reason: Reason::TenantsRemain, message };
    ConditionResults::from([
        (ConditionType::Accepted, ConditionResult::as_expected(ConditionStatus::True)),
        (ConditionType::Placed, placed_condition(plan)),
        (ConditionType::DevicesAllocated, allocated_condition(plan)),
        (
            ConditionType::Degraded,
            held_condition(given, plan).unwrap_or_else(|| pending_update_condition(plan)),
        ),
        (ConditionType::Terminating, terminating),
    ])
}

fn placed_condition(plan: &PoolPlan<'_>) -> ConditionResult {
    let lacks_capacity = |tenant: &&crate::pool_plan::TenantPlan<'_>| {
        tenant.slots.iter().any(|slot| matches!(slot.gpu_index, Err(UnplacedReason::NoCapacity { .. })))
    };
    let unplaced: Vec<&str> =
        plan.tenants.iter().filter(lacks_capacity).map(|tenant| name(tenant.tenant)).collect();
    match unplaced.len() {
        0 => ConditionResult::as_expected(ConditionStatus::True),
        count => ConditionResult::not_met(
            Reason::Unschedulable,
            format!("{count} tenants lack a GPU, the first is {}", unplaced[0]),
        ),
    }
}

fn allocated_condition(plan: &PoolPlan<'_>) -> ConditionResult {
    let wanted = plan.gpus.iter().filter_map(|gpu| Some(claim_name(&gpu.gpu, gpu.epoch?.number)));
    let lacks = |claim: &String| plan.claim(claim).is_none_or(|claim| claim.device.is_none());
    let lacking: Vec<String> = wanted.filter(lacks).collect();
    match lacking.first() {
        None => ConditionResult::as_expected(ConditionStatus::True),
        Some(first) => {
            let message = format!("{} claims have no device, the first is {first}", lacking.len());
            ConditionResult::not_met(Reason::NotAllocated, message)
        }
    }
}

/// Returns the names of the GPUs whose epoch satisfies `is`.
fn gpu_names_where<'p>(plan: &'p PoolPlan<'_>, is: impl Fn(&Epoch) -> bool) -> Vec<&'p str> {
    let those = plan.gpus.iter().filter(|gpu| gpu.epoch.as_ref().is_some_and(&is));
    those.map(|gpu| gpu.gpu.name.as_str()).collect()
}

fn held_condition(given: &PlanContext<'_>, plan: &PoolPlan<'_>) -> Option<ConditionResult> {
    let names = gpu_names_where(plan, |epoch| epoch.is_held);
    let ZoneDisruption { claim_nodes: holding, not_ready, .. } = given.disruption;
    let message = format!(
        "{not_ready} of {holding} nodes that hold claims are not ready at the same time, probably because \
         of the network or the control plane: {} GPUs stay on these nodes until fewer are not ready, the \
         first is {}",
        names.len(),
        names.first()?
    );
    Some(ConditionResult { status: ConditionStatus::True, reason: Reason::NodesNotReady, message })
}

fn pending_update_condition(plan: &PoolPlan<'_>) -> ConditionResult {
    let names = gpu_names_where(plan, |epoch| epoch.is_update_pending);
    match names.first() {
        None => ConditionResult::as_expected(ConditionStatus::False),
        Some(first) => ConditionResult {
            status: ConditionStatus::True,
            reason: Reason::UpdateWaits,
            message: format!(
                "a change is pending until no tenant is on {}, the first is {first} \
                 (spec.updatePolicy: WhenEmpty)",
                counted(names.len(), "GPU")
            ),
        },
    }
}

/// The GPUs of a status, by name.
type KnownGpus<'a> = BTreeMap<&'a str, &'a GpuStatus>;

fn gpu_status(
    given: &PlanContext<'_>,
    plan: &PoolPlan<'_>,
    pool: &GpuPool,
    index: usize,
    before: &KnownGpus<'_>,
) -> GpuStatus {
    let planned = &plan.gpus[index];
    let before = before.get(planned.gpu.name.as_str()).copied();
    let claim = planned.epoch.map(|epoch| claim_name(&planned.gpu, epoch.number));
    let seen = claim.as_deref().and_then(|claim| plan.claim(claim));
    let device = seen.and_then(|claim| claim.device.as_ref());
    let mut tenants: Vec<String> =
        plan.slots_on(index).map(|(tenant, _)| name(tenant.tenant).to_owned()).collect();
    tenants.sort_unstable();
    let tells =
        |tenant: &String| given.observed.reports.contains_key(&(tenant.clone(), planned.gpu.name.clone()));
    // Until a sidecar has reported, as after a restart, the previous order stays.
    let silent = before.filter(|before| !tenants.iter().any(tells) && before.tenants == tenants);
    GpuStatus {
        name: planned.gpu.name.clone(),
        node: device.and_then(|device| device.node.clone()),
        device: device.map(|device| device.name.clone()),
        uuid: device.and_then(|device| device.uuid.clone()),
        effective_mode: claim.as_ref().map(|_| planned.gpu.settings.sharing.mode),
        capacity: planned.gpu.expected_bytes().map(Quantity::from_bytes),
        used: used_memory(given, &planned.gpu.name, &tenants, before),
        victim_order: silent
            .map_or_else(|| victim_order(given, plan, pool, index), |before| before.victim_order.clone()),
        claim_name: claim,
        tenants,
    }
}

/// Returns the inactive tenants of a GPU in the order in which they would lend memory; by name under `FixedOrder`.
fn victim_order(given: &PlanContext<'_>, plan: &PoolPlan<'_>, pool: &GpuPool, index: usize) -> Vec<String> {
    let (rule, gpu) = (victim_rule(pool.spec.remap.victim), &plan.gpus[index].gpu.name);
    let inactive = plan.slots_on(index).filter_map(|(planned, _)| {
        let report = given.observed.reports.get(&(name(planned.tenant).to_owned(), gpu.clone()))?;
        report.activity.inactive_since_unix_ms.is_some().then_some((planned.tenant, report))
    });
    let mut inactive: Vec<(&ModelTenant, &SidecarReport)> = inactive.collect();
    sort_victims(&mut inactive, rule, |(tenant, report)| Lender {
        name: name(*tenant),
        priority: tenant.spec.priority,
        activity: Some(&report.activity),
    });
    inactive.into_iter().map(|(tenant, _)| name(tenant).to_owned()).collect()
}

/// Returns the memory that the GPU's tenants own, by their last reports. After a restart of the operator some reports
/// are missing: with the same tenants, the sum is at least the previous value.
fn used_memory(
    given: &PlanContext<'_>,
    gpu: &str,
    tenants: &[String],
    before: Option<&GpuStatus>,
) -> Option<Quantity> {
    let owned = tenants.iter().map(|tenant| given.observed.owned.get(&(tenant.clone(), gpu.to_owned())));
    let known: Vec<u64> = owned.flatten().copied().collect();
    let sum = known.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let kept = before.and_then(|before| before.used.as_ref()).map(Quantity::bytes);
    let same = before.is_some_and(|before| before.tenants == tenants);
    match known.len() {
        0 => kept,
        all if all == tenants.len() || !same => Some(sum),
        _ => kept.max(Some(sum)),
    }
    .map(Quantity::from_bytes)
}

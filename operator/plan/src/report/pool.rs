//! What is told of a pool: its conditions, and its GPUs.

use std::collections::BTreeMap;

use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::pool::{GpuPoolStatus, GpuStatus};
use sluice_types::rules::MOST_GPUS;
use sluice_types::{GpuPool, ModelTenant, Quantity};
use sluice_wire::directive::VictimRule;

use super::{Change, alike, time};
use crate::direct::{turn, victim};
use crate::epoch::Epoch;
use crate::objects::{claim_name, name};
use crate::outage::Outage;
use crate::place::Unplaced;
use crate::seen::Report;
use crate::status::{Finding, Findings, Truth, conditions};
use crate::unit::{Given, Plan};

/// The status of the plan's pool.
pub fn pool_status(given: &Given<'_>, plan: &Plan<'_>, pool: &GpuPool) -> GpuPoolStatus {
    let before = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    let deleting = pool.metadata.deletion_timestamp.is_some();
    let mut kinds = ConditionType::OF_POOL.to_vec();
    kinds.extend(deleting.then_some(ConditionType::Terminating));
    let findings = findings(given, plan);
    let known = before.gpus.iter().map(|gpu| (gpu.name.as_str(), gpu)).collect();
    GpuPoolStatus {
        conditions: conditions(&kinds, &before.conditions, &findings, generation, &time(given.now)),
        observed_generation: Some(generation),
        // Those that the pool has no more come last.
        gpus: (0..plan.gpus.len().min(MOST_GPUS))
            .map(|gpu| gpu_status(given, plan, pool, gpu, &known))
            .collect(),
    }
}

/// How `after` differs from `before`.
pub fn pool_change(before: Option<&GpuPoolStatus>, after: &GpuPoolStatus) -> Change {
    let Some(before) = before else { return Change::Conditions };
    if before == after {
        return Change::None;
    }
    let core = |status: &GpuPoolStatus| {
        let gpu = |gpu: &GpuStatus| {
            (gpu.name.clone(), gpu.claim_name.clone(), gpu.node.clone(), gpu.tenants.clone())
        };
        (status.gpus.iter().map(gpu).collect::<Vec<_>>(), status.observed_generation)
    };
    let same = core(before) == core(after) && alike(&before.conditions, &after.conditions);
    if same { Change::Figures } else { Change::Conditions }
}

fn findings(given: &Given<'_>, plan: &Plan<'_>) -> Findings {
    let remain = given.tenants.len();
    let message = format!("{remain} tenants still refer to the pool");
    let terminating = Finding { truth: Truth::True, reason: Reason::TenantsRemain, message };
    Findings::from([
        (ConditionType::Accepted, Finding::as_expected(Truth::True)),
        (ConditionType::Placed, placed(plan)),
        (ConditionType::DevicesAllocated, allocated(plan)),
        (ConditionType::Degraded, held(given, plan).unwrap_or_else(|| waiting(plan))),
        (ConditionType::Terminating, terminating),
    ])
}

fn placed(plan: &Plan<'_>) -> Finding {
    let no_room = |tenant: &&crate::unit::TenantPlan<'_>| {
        tenant.slots.iter().any(|slot| matches!(slot.on, Err(Unplaced::NoRoom { .. })))
    };
    let homeless: Vec<&str> = plan.tenants.iter().filter(no_room).map(|tenant| name(tenant.tenant)).collect();
    match homeless.len() {
        0 => Finding::as_expected(Truth::True),
        count => {
            Finding::no(Reason::NoRoom, format!("{count} tenants lack a GPU, {} among them", homeless[0]))
        }
    }
}

fn allocated(plan: &Plan<'_>) -> Finding {
    let wanted = plan.gpus.iter().filter_map(|gpu| Some(claim_name(&gpu.gpu, gpu.epoch?.number)));
    let lacks = |claim: &String| plan.claim(claim).is_none_or(|claim| claim.device.is_none());
    let lacking: Vec<String> = wanted.filter(lacks).collect();
    match lacking.first() {
        None => Finding::as_expected(Truth::True),
        Some(first) => {
            let message = format!("{} claims have no device, {first} among them", lacking.len());
            Finding::no(Reason::NotAllocated, message)
        }
    }
}

/// Names of the GPUs whose epoch is one that `is` so.
fn those<'p>(plan: &'p Plan<'_>, is: impl Fn(&Epoch) -> bool) -> Vec<&'p str> {
    let those = plan.gpus.iter().filter(|gpu| gpu.epoch.as_ref().is_some_and(&is));
    those.map(|gpu| gpu.gpu.name.as_str()).collect()
}

fn held(given: &Given<'_>, plan: &Plan<'_>) -> Option<Finding> {
    let names = those(plan, |epoch| epoch.held);
    let Outage { holding, not_ready, .. } = given.outage;
    let message = format!(
        "{not_ready} of {holding} nodes that hold claims are not ready at once, which is hardly the nodes' own fault: {} GPUs \
         stay on theirs until fewer are, {} among them",
        names.len(),
        names.first()?
    );
    Some(Finding { truth: Truth::True, reason: Reason::NodesNotReady, message })
}

fn waiting(plan: &Plan<'_>) -> Finding {
    let names = those(plan, |epoch| epoch.waits);
    match names.first() {
        None => Finding::as_expected(Truth::False),
        Some(first) => Finding {
            truth: Truth::True,
            reason: Reason::UpdateWaits,
            message: format!(
                "a change waits until no tenant is on {} GPUs, {first} among them (spec.updatePolicy)",
                names.len()
            ),
        },
    }
}

/// What a status says of its GPUs, by their names.
type Known<'a> = BTreeMap<&'a str, &'a GpuStatus>;

fn gpu_status(
    given: &Given<'_>,
    plan: &Plan<'_>,
    pool: &GpuPool,
    index: usize,
    before: &Known<'_>,
) -> GpuStatus {
    let planned = &plan.gpus[index];
    let before = before.get(planned.gpu.name.as_str()).copied();
    let claim = planned.epoch.map(|epoch| claim_name(&planned.gpu, epoch.number));
    let seen = claim.as_deref().and_then(|claim| plan.claim(claim));
    let device = seen.and_then(|claim| claim.device.as_ref());
    let mut tenants: Vec<String> = plan.on(index).map(|(tenant, _)| name(tenant.tenant).to_owned()).collect();
    tenants.sort_unstable();
    let tells =
        |tenant: &String| given.seen.reports.contains_key(&(tenant.clone(), planned.gpu.name.clone()));
    // While nobody has told anything, as after a restart, it is as it was.
    let silent = before.filter(|before| !tenants.iter().any(tells) && before.tenants == tenants);
    GpuStatus {
        name: planned.gpu.name.clone(),
        node: device.and_then(|device| device.node.clone()),
        device: device.map(|device| device.name.clone()),
        uuid: device.and_then(|device| device.uuid.clone()),
        effective_mode: claim.as_ref().map(|_| planned.gpu.settings.sharing.mode),
        capacity: planned.gpu.expected_bytes().map(Quantity::from_bytes),
        used: used(given, &planned.gpu.name, &tenants, before),
        victim_order: silent
            .map_or_else(|| victims(given, plan, pool, index), |before| before.victim_order.clone()),
        claim_name: claim,
        tenants,
    }
}

/// Tenants of a GPU that are of no use now, in the order in which they would give memory, by name under `FixedOrder`.
fn victims(given: &Given<'_>, plan: &Plan<'_>, pool: &GpuPool, index: usize) -> Vec<String> {
    let (rule, gpu) = (victim(pool.spec.remap.victim), &plan.gpus[index].gpu.name);
    let inactive = plan.on(index).filter_map(|(planned, _)| {
        let report = given.seen.reports.get(&(name(planned.tenant).to_owned(), gpu.clone()))?;
        report.activity.inactive_since_unix_ms.is_some().then_some((planned.tenant, report))
    });
    let mut inactive: Vec<(&ModelTenant, &Report)> = inactive.collect();
    inactive.sort_by_key(|(tenant, _)| name(*tenant));
    if rule != VictimRule::FixedOrder {
        inactive.sort_by_key(|(tenant, report)| turn(Some(&report.activity), tenant.spec.priority, rule));
    }
    inactive.into_iter().map(|(tenant, _)| name(tenant).to_owned()).collect()
}

/// What the GPU's tenants own, as their sidecars told it last. Of whoever has told nothing since the operator began nobody knows:
/// for as long as the same tenants are there it is no less than it was.
fn used(given: &Given<'_>, gpu: &str, tenants: &[String], before: Option<&GpuStatus>) -> Option<Quantity> {
    let owned = tenants.iter().map(|tenant| given.seen.owned.get(&(tenant.clone(), gpu.to_owned())));
    let told: Vec<u64> = owned.flatten().copied().collect();
    let sum = told.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let kept = before.and_then(|before| before.used.as_ref()).map(Quantity::bytes);
    let same = before.is_some_and(|before| before.tenants == tenants);
    match told.len() {
        0 => kept,
        all if all == tenants.len() || !same => Some(sum),
        _ => kept.max(Some(sum)),
    }
    .map(Quantity::from_bytes)
}

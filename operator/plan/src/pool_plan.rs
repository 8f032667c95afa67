//! The plan of a pool with its tenants: desired state from observed state.
//!
//! The only state between two plans is in the cluster: a Deployment names the claim of its slot, and a claim's name
//! contains its GPU and its epoch.

mod admission;
mod desired_slots;
mod desired_state;
mod share_plan;

use std::collections::{BTreeMap, BTreeSet};

use sluice_types::ModelTenant;

use self::admission::{is_in_removed_group, reject_if_terminating, reject_oversized_kv, validate_tenant};
use self::desired_slots::{ClaimNames, PoolDemandParams, desired_slots};
pub use self::desired_state::{GpuPlan, PoolPlan, SlotPlan, TenantPlan};
use self::share_plan::assign_shares;
pub use self::share_plan::slot_memory;
use crate::claims_in_force::current_claims;
use crate::epoch::Epoch;
use crate::gpu::Gpu;
use crate::objects::claim_name;
use crate::observed::{ApplyFailure, ObservedIndex};
use crate::placement::{Slot, SlotPlacement, place};
use crate::plan_context::PlanContext;

/// Errors from applying a plan, by tenant.
pub type ApplyErrors = BTreeMap<String, ApplyFailure>;

/// Plans a pool and its tenants. Without a pool nothing is placed, and nothing that exists is removed.
pub fn plan<'a>(given: &PlanContext<'a>) -> PoolPlan<'a> {
    let Some(pool) = given.pool else {
        let tenants = given.tenants.iter().map(|tenant| validate_tenant(given, tenant, false)).collect();
        return PoolPlan { tenants, ..PoolPlan::default() };
    };
    let index = ObservedIndex::new(given.observed);
    let (gpus, epochs): (Vec<Gpu>, Vec<Epoch>) =
        current_claims(pool, &index, given).into_iter().map(|dated| (dated.gpu, dated.epoch)).unzip();
    let keeps = |tenant: &&ModelTenant| is_in_removed_group(tenant, &gpus, &index);
    let mut tenants: Vec<TenantPlan<'a>> =
        given.tenants.iter().map(|tenant| validate_tenant(given, tenant, keeps(tenant))).collect();
    let terms = PoolDemandParams::new(pool, &gpus);
    let claims: ClaimNames<'_> = gpus
        .iter()
        .zip(&epochs)
        .map(|(gpu, epoch)| (gpu.name.as_str(), claim_name(gpu, epoch.number)))
        .collect();
    for tenant in &mut tenants {
        reject_oversized_kv(tenant, &terms, &index);
        reject_if_terminating(tenant, pool, &index);
    }
    let wanted: Vec<Vec<Slot>> = tenants
        .iter()
        .map(|tenant| desired_slots(&terms, tenant, (&index, &claims), given.observed))
        .collect();
    let mut placement = place(&gpus, &wanted.concat());
    let by_name: BTreeMap<&str, usize> =
        gpus.iter().enumerate().map(|(index, gpu)| (gpu.name.as_str(), index)).collect();
    for (tenant, slots) in tenants.iter_mut().zip(wanted) {
        let on = |name: String| by_name[name.as_str()];
        tenant.slots = slots.iter().map(|slot| plan_slot(slot, &mut placement, &gpus, &on)).collect();
    }
    let gpus = gpus.into_iter().map(|gpu| GpuPlan { gpu, epoch: None }).collect();
    let mut plan = PoolPlan { gpus, tenants, ..PoolPlan::default() };
    plan.slots = slots_by_gpu(&plan);
    assign_shares(&mut plan, given.observed);
    assign_epochs(&mut plan, &epochs);
    PoolPlan { index, ..plan }
}

fn slots_by_gpu(plan: &PoolPlan<'_>) -> Vec<Vec<(usize, usize)>> {
    let mut all = vec![Vec::new(); plan.gpus.len()];
    for (at, tenant) in plan.tenants.iter().enumerate() {
        for (slot, planned) in tenant.slots.iter().enumerate() {
            if let Ok(gpu) = planned.gpu_index {
                all[gpu].push((at, slot));
            }
        }
    }
    all
}

fn plan_slot(
    slot: &Slot,
    placement: &mut SlotPlacement,
    gpus: &[Gpu],
    at: &impl Fn(String) -> usize,
) -> SlotPlan {
    let on =
        placement.remove(&(slot.tenant.clone(), slot.index)).expect("every slot is placed or not").map(at);
    let there = on.as_ref().ok().and_then(|gpu| slot.demand_on(&gpus[*gpu]));
    let demand = there.or(slot.demand).unwrap_or_default();
    SlotPlan {
        index: slot.index,
        gpu_index: on,
        demand,
        floor_bytes: demand.floor_bytes,
        share_bytes: 0,
        is_share_assigned: false,
    }
}

fn all_slots<'p>(plan: &'p PoolPlan<'_>) -> impl Iterator<Item = (&'p TenantPlan<'p>, &'p SlotPlan)> {
    plan.tenants.iter().flat_map(|tenant| tenant.slots.iter().map(move |slot| (tenant, slot)))
}

/// Sets the epoch of every GPU with a slot.
fn assign_epochs(plan: &mut PoolPlan<'_>, epochs: &[Epoch]) {
    let taken: BTreeSet<usize> =
        all_slots(plan).filter_map(|(_, slot)| slot.gpu_index.as_ref().ok().copied()).collect();
    for (at, (planned, epoch)) in plan.gpus.iter_mut().zip(epochs).enumerate() {
        planned.epoch = Some(*epoch).filter(|_| taken.contains(&at));
    }
}

/// Returns the names of the claims that should exist.
pub fn claim_names(plan: &PoolPlan<'_>) -> BTreeSet<String> {
    plan.gpus.iter().filter_map(|planned| Some(claim_name(&planned.gpu, planned.epoch?.number))).collect()
}

//! Assigns the memory of each GPU to its slots.

use super::desired_slots::reported_floor;
use super::{PoolPlan, SlotPlan, TenantPlan};
use crate::objects::name;
use crate::observed::ObservedPool;
use crate::shares::{ShareInput, shares};

/// Assigns the shares of each GPU. On a GPU of unknown size each slot gets its floor.
pub fn assign_shares(plan: &mut PoolPlan<'_>, seen: &ObservedPool) {
    for gpu in 0..plan.gpus.len() {
        let on = &plan.gpus[gpu].gpu;
        let demands = plan.slots_on(gpu).map(|(_, slot)| slot.demand);
        // Contexts belong to the driver: no chunk is made of that memory.
        let contexts: u64 = demands.map(|demand| demand.context_bytes).sum();
        let capacity = on.capacity_bytes.map(|capacity| capacity.saturating_sub(contexts));
        let parts = share_inputs(plan, gpu, capacity.unwrap_or(u64::MAX), seen);
        let dealt = capacity.map(|capacity| shares(capacity, on.settings.chunk_bytes(), &parts));
        for (at, (tenant, slot)) in plan.slots[gpu].iter().enumerate() {
            let TenantPlan { model, slots, .. } = &mut plan.tenants[*tenant];
            let slot = &mut slots[*slot];
            slot.floor_bytes = parts[at].floor_bytes;
            slot.is_share_assigned = dealt.is_some() && model.is_some();
            slot.share_bytes = dealt.as_ref().map_or(slot.floor_bytes, |dealt| dealt[at]);
        }
    }
}

/// Returns the share input of each slot of a GPU of `capacity` bytes. A reported floor counts where it exceeds the
/// planned one, because otherwise no peer would ever release the rest. It counts only as far as all other slots keep
/// their planned floors, whatever is reported.
fn share_inputs(plan: &PoolPlan<'_>, gpu: usize, capacity: u64, seen: &ObservedPool) -> Vec<ShareInput> {
    let on = &plan.gpus[gpu].gpu;
    let chunk = on.settings.chunk_bytes().max(1);
    let chunks = |bytes: u64| bytes.div_ceil(chunk);
    let foreseen: Vec<u64> = plan.slots_on(gpu).map(|(_, slot)| slot.demand.chunks_bytes()).collect();
    let beyond = |((tenant, _), own): ((&TenantPlan<'_>, &SlotPlan), &u64)| {
        chunks(reported_floor(name(tenant.tenant), &on.name, seen)).saturating_sub(chunks(*own))
    };
    let beyond: Vec<u64> = plan.slots_on(gpu).zip(&foreseen).map(beyond).collect();
    let room = (capacity / chunk).saturating_sub(foreseen.iter().map(|own| chunks(*own)).sum());
    let granted = scale_to_fit(room, &beyond);
    let part = |(at, (tenant, _)): (usize, (&TenantPlan<'_>, &SlotPlan))| ShareInput {
        weights_bytes: tenant.model.map_or(0, |model| model.weights_bytes()),
        floor_bytes: match granted[at] {
            0 => foreseen[at],
            more => (chunks(foreseen[at]) + more) * chunk,
        },
    };
    plan.slots_on(gpu).enumerate().map(part).collect()
}

/// Returns `wanted` if it fits into `room`, else proportional parts, rounded down.
fn scale_to_fit(room: u64, wanted: &[u64]) -> Vec<u64> {
    let all: u128 = wanted.iter().map(|one| u128::from(*one)).sum();
    let part = |one: &u64| match u64::try_from(all) {
        Ok(all) if all <= room => *one,
        _ => u64::try_from(u128::from(room) * u128::from(*one) / all).expect("a part of the room"),
    };
    wanted.iter().map(part).collect()
}

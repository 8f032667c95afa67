//! Assigns the memory of each GPU to its slots.

use super::desired_slots::reported_floor;
use super::desired_state::{PoolPlan, SlotPlan, TenantPlan};
use crate::objects::name;
use crate::observed::ObservedPool;
use crate::shares::{SlotMemory, slot_shares};

/// Assigns the shares of each GPU. On a GPU of unknown size each slot gets its floor.
pub fn assign_shares(plan: &mut PoolPlan<'_>, seen: &ObservedPool) {
    for gpu in 0..plan.gpus.len() {
        let (on, capacity) = (&plan.gpus[gpu].gpu, plan.chunk_memory_bytes(gpu));
        let memory = |(tenant, slot): (&TenantPlan<'_>, &SlotPlan)| {
            slot_memory(tenant, slot, reported_floor(name(tenant.tenant), &on.name, seen))
        };
        let slots: Vec<SlotMemory> = plan.slots_on(gpu).map(memory).collect();
        let dealt = slot_shares(capacity, on.settings.chunk_bytes(), &slots);
        for ((tenant, slot), dealt) in plan.slots[gpu].iter().zip(dealt) {
            let TenantPlan { model, slots, .. } = &mut plan.tenants[*tenant];
            let slot = &mut slots[*slot];
            slot.is_share_assigned = capacity.is_some() && model.is_some();
            (slot.floor_bytes, slot.share_bytes) = (dealt.floor_bytes, dealt.share_bytes);
        }
    }
}

/// Returns what the share of a planned slot depends on.
pub fn slot_memory(tenant: &TenantPlan<'_>, slot: &SlotPlan, reported_floor_bytes: u64) -> SlotMemory {
    SlotMemory {
        weights_bytes: tenant.model.map_or(0, |model| model.weights_bytes()),
        planned_floor_bytes: slot.demand.chunks_bytes(),
        reported_floor_bytes,
    }
}

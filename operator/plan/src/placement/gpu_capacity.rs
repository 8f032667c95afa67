//! What is left of one GPU while slots are placed.

use std::cmp::Reverse;

use super::{Slot, UnfitReason};
use crate::gpu::Gpu;
use crate::resource_demand::Demand;

/// A GPU, and what its slots have taken.
#[derive(Debug)]
pub struct GpuCapacity<'a> {
    pub gpu: &'a Gpu,
    tenants: Vec<&'a str>,
    /// One of them shares with nobody.
    is_exclusive: bool,
    /// Nobody knows what one of them takes, so nobody joins it.
    has_uninspected: bool,
    /// Nobody knows yet what one of them has found to be its floor, so nobody joins it.
    has_unknown_floor: bool,
    /// One of them serves.
    has_serving: bool,
    /// As foreseen.
    floors_bytes: u64,
    /// What slots have told beyond that.
    reported_excess_bytes: u64,
    host_bytes: u64,
    pods_bytes: u64,
}

impl<'a> GpuCapacity<'a> {
    pub fn new(gpu: &'a Gpu) -> Self {
        GpuCapacity {
            gpu,
            tenants: Vec::new(),
            is_exclusive: false,
            has_uninspected: false,
            has_unknown_floor: false,
            has_serving: false,
            floors_bytes: 0,
            reported_excess_bytes: 0,
            host_bytes: 0,
            pods_bytes: 0,
        }
    }

    /// Whether this is the GPU that the slot has.
    pub fn is_gpu_of(&self, slot: &Slot) -> bool {
        slot.current_gpu.as_ref() == Some(&self.gpu.name)
    }

    /// Whether the GPU is of the group that the tenant names, and takes it.
    pub fn can_use(&self, slot: &Slot) -> bool {
        let takes = !self.gpu.is_draining || self.is_gpu_of(slot);
        takes && slot.group.as_ref().is_none_or(|group| *group == self.gpu.group)
    }

    /// Device memory above all floors, bytes.
    pub fn free_bytes(&self) -> u64 {
        self.planned_free_bytes().saturating_sub(self.reported_excess_bytes)
    }

    /// Device memory above all floors as they were foreseen, bytes.
    fn planned_free_bytes(&self) -> u64 {
        self.gpu.expected_bytes().unwrap_or(u64::MAX).saturating_sub(self.floors_bytes)
    }

    /// What is missing for the slot here; `None` = it fits.
    pub fn unfit_reason(&self, slot: &Slot) -> Option<UnfitReason> {
        let Some(demand) = slot.demand_on(self.gpu) else { return Some(UnfitReason::UpdatePending) };
        let missing =
            |wanted: u64, left: u64| wanted.checked_sub(left).filter(|bytes| *bytes > 0).map(Reverse);
        if self.tenants.contains(&slot.tenant.as_str()) {
            return Some(UnfitReason::SameTenant);
        }
        if self.is_exclusive || (slot.is_exclusive && !self.tenants.is_empty()) {
            return Some(UnfitReason::Exclusive);
        }
        let stays = self.is_gpu_of(slot);
        let serves = stays && slot.is_serving;
        if self.has_uninspected && !serves {
            return Some(UnfitReason::Uninspected);
        }
        if self.has_unknown_floor && !stays {
            return Some(UnfitReason::FloorUnknown);
        }
        if self.tenants.len() >= self.gpu.max_slots() {
            return Some(UnfitReason::Full);
        }
        let left = match stays {
            _ if serves => self.gpu.expected_bytes().unwrap_or(u64::MAX),
            true => self.planned_free_bytes(),
            false => self.free_bytes(),
        };
        if let Some(bytes) = missing(demand.floor_bytes, left) {
            return Some(UnfitReason::DeviceMemory(bytes));
        }
        if serves || (stays && slot.is_admitted) {
            return None;
        }
        let host = self.gpu.host_bytes.saturating_sub(self.host_bytes);
        let node = self.gpu.node_bytes.map_or(u64::MAX, |node| node.saturating_sub(self.pods_bytes));
        let lacking = [missing(demand.host_bytes, host), missing(demand.pod.bytes(), node)];
        lacking.into_iter().flatten().min().map(UnfitReason::HostMemory)
    }

    /// Whether the slot, which is here, would fit but for the floors of others, of whom somebody serves. Where nobody does the GPU
    /// has turned out too small for those who came to it.
    pub fn is_displaced(&self, slot: &Slot) -> bool {
        let own = slot.demand_on(self.gpu).map_or(u64::MAX, |demand| demand.floor_bytes);
        let alone = self.gpu.expected_bytes().is_none_or(|all| own <= all);
        self.has_serving && alone && matches!(self.unfit_reason(slot), Some(UnfitReason::DeviceMemory(_)))
    }

    /// Takes back the room of a slot that others have outgrown: it shares, was inspected and does not serve.
    pub fn release(&mut self, slot: &Slot) {
        let demand = slot.demand_on(self.gpu).unwrap_or_default();
        self.tenants.retain(|tenant| *tenant != slot.tenant);
        self.floors_bytes = self.floors_bytes.saturating_sub(demand.floor_bytes);
        self.reported_excess_bytes =
            self.reported_excess_bytes.saturating_sub(reported_excess(slot, &demand));
        self.host_bytes = self.host_bytes.saturating_sub(demand.host_bytes);
        self.pods_bytes = self.pods_bytes.saturating_sub(demand.pod.bytes());
    }

    /// Gives the slot room here. Answers the GPU's name.
    pub fn allocate(&mut self, slot: &'a Slot) -> String {
        let demand = slot.demand_on(self.gpu).unwrap_or_default();
        self.tenants.push(&slot.tenant);
        self.is_exclusive |= slot.is_exclusive;
        self.has_uninspected |= slot.demand.is_none();
        self.has_serving |= slot.is_serving && self.is_gpu_of(slot);
        self.floors_bytes += demand.floor_bytes;
        if self.is_gpu_of(slot) {
            self.has_unknown_floor |= slot.is_floor_unknown;
            self.reported_excess_bytes =
                self.reported_excess_bytes.saturating_add(reported_excess(slot, &demand));
        }
        self.host_bytes = self.host_bytes.saturating_add(demand.host_bytes);
        self.pods_bytes = self.pods_bytes.saturating_add(demand.pod.bytes());
        self.gpu.name.clone()
    }
}

/// What a slot has told beyond what was foreseen, bytes.
fn reported_excess(slot: &Slot, demand: &Demand) -> u64 {
    slot.reported_floor_bytes.saturating_sub(demand.chunks_bytes())
}

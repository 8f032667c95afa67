//! The remaining capacity of one GPU during placement.

use std::cmp::Reverse;

use super::slot::Slot;
use super::unfit_reason::UnfitReason;
use crate::gpu::Gpu;
use crate::resource_demand::Demand;

/// A GPU, and the resources that its slots have taken.
#[derive(Debug)]
pub struct GpuCapacity<'a> {
    pub gpu: &'a Gpu,
    tenants: Vec<&'a str>,
    /// One of its slots has it exclusively.
    is_exclusive: bool,
    /// The demand of one of its slots is not known, so no slot is added.
    has_uninspected: bool,
    /// The reported floor of one of its slots is not known yet, so no slot is added.
    has_unknown_floor: bool,
    /// One of its slots serves.
    has_serving: bool,
    /// Sum of planned floors.
    floors_bytes: u64,
    /// Reported floors beyond the planned ones.
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

    /// Whether the GPU is in the group that the tenant names, and accepts the slot.
    pub fn can_use(&self, slot: &Slot) -> bool {
        let takes = !self.gpu.is_draining || self.is_gpu_of(slot);
        takes && slot.group.as_ref().is_none_or(|group| *group == self.gpu.group)
    }

    /// Device memory above all floors, bytes.
    pub fn free_bytes(&self) -> u64 {
        self.planned_free_bytes().saturating_sub(self.reported_excess_bytes)
    }

    /// Device memory above all planned floors, bytes.
    fn planned_free_bytes(&self) -> u64 {
        self.gpu.expected_bytes().unwrap_or(u64::MAX).saturating_sub(self.floors_bytes)
    }

    /// Returns what the slot lacks here; `None` = it fits.
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

    /// Whether the slot, which is here, would fit without the floors of others, at least one of which serves. If none
    /// serves, the GPU is too small for the slots that were placed on it.
    pub fn is_displaced(&self, slot: &Slot) -> bool {
        let own = slot.demand_on(self.gpu).map_or(u64::MAX, |demand| demand.floor_bytes);
        let fits_unshared = self.gpu.expected_bytes().is_none_or(|all| own <= all);
        self.has_serving
            && fits_unshared
            && matches!(self.unfit_reason(slot), Some(UnfitReason::DeviceMemory(_)))
    }

    /// Releases the capacity of a displaced slot, which shares the GPU, was inspected and does not serve.
    pub fn release(&mut self, slot: &Slot) {
        let demand = slot.demand_on(self.gpu).unwrap_or_default();
        self.tenants.retain(|tenant| *tenant != slot.tenant);
        self.floors_bytes = self.floors_bytes.saturating_sub(demand.floor_bytes);
        self.reported_excess_bytes =
            self.reported_excess_bytes.saturating_sub(reported_excess(slot, &demand));
        self.host_bytes = self.host_bytes.saturating_sub(demand.host_bytes);
        self.pods_bytes = self.pods_bytes.saturating_sub(demand.pod.bytes());
    }

    /// Allocates capacity for the slot. Returns the GPU's name.
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

/// Returns the reported floor beyond the planned one, bytes.
fn reported_excess(slot: &Slot, demand: &Demand) -> u64 {
    slot.reported_floor_bytes.saturating_sub(demand.chunks_bytes())
}

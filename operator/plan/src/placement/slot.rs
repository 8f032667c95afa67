//! [`Slot`].

use std::collections::BTreeMap;

use super::smaller_floor::SmallerFloor;
use crate::gpu::Gpu;
use crate::resource_demand::Demand;

/// A slot of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its tenant, by name: a pool and its tenants share a namespace.
    pub tenant: String,
    /// Its index in the tenant.
    pub index: u32,
    /// The group that the tenant names; `None` = any group of the pool.
    pub group: Option<String>,
    /// Priority of the tenant: higher is placed first.
    pub priority: i32,
    /// Creation time of the tenant, seconds since 1970: among equals the oldest is placed first.
    pub created: i64,
    /// Resources that it takes; `None` = the model has not been inspected.
    pub demand: Option<Demand>,
    /// Resources that it takes of GPUs with other settings in force, by name, while an update is pending; `None` = it
    /// cannot run there.
    pub demand_by_gpu: BTreeMap<String, Option<Demand>>,
    /// The fields of its tenant that lower its floor.
    pub smaller_floor: SmallerFloor,
    /// It has a proxied engine, whose memory Sluice does not manage: it shares its GPU with no slot.
    pub is_exclusive: bool,
    /// The GPU that it has.
    pub current_gpu: Option<String>,
    /// Floor that its sidecar reports there, bytes; 0 = no report. The slot itself stays by its planned floor, which
    /// is the same on every GPU; new slots are checked against the reported one where it is larger.
    pub reported_floor_bytes: u64,
    /// A new leader has not polled its sidecar yet: no slot is added to the GPU until it has.
    pub is_floor_unknown: bool,
    /// Its pod is scheduled on that GPU's node with all its requests: neither later requests of other pods nor less
    /// host memory for the GPU evict it.
    pub is_admitted: bool,
    /// Its pod is ready: it has its floor, and moves only if the GPU changes or is too small for this slot alone.
    pub is_serving: bool,
}

impl Slot {
    /// Returns the resources that it takes of `gpu`; `None` = it cannot run there.
    pub fn demand_on(&self, gpu: &Gpu) -> Option<Demand> {
        match self.demand_by_gpu.get(&gpu.name) {
            Some(other) if self.demand.is_some() => *other,
            _ => Some(self.demand.unwrap_or_default()),
        }
    }
}

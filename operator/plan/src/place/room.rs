//! What is left of one GPU while slots are placed.

use std::cmp::Reverse;

use super::{Misfit, Slot};
use crate::demand::Demand;
use crate::gpu::Gpu;

/// A GPU, and what its slots have taken.
#[derive(Debug)]
pub struct Room<'a> {
    pub gpu: &'a Gpu,
    tenants: Vec<&'a str>,
    /// One of them shares with nobody.
    alone: bool,
    /// Nobody knows what one of them takes, so nobody joins it.
    uninspected: bool,
    /// Nobody knows yet what one of them has found to be its floor, so nobody joins it.
    unheard: bool,
    /// One of them serves.
    serves: bool,
    /// As foreseen.
    floors_bytes: u64,
    /// What slots have told beyond that.
    beyond_bytes: u64,
    host_bytes: u64,
    pods_bytes: u64,
}

impl<'a> Room<'a> {
    pub fn new(gpu: &'a Gpu) -> Self {
        Room {
            gpu,
            tenants: Vec::new(),
            alone: false,
            uninspected: false,
            unheard: false,
            serves: false,
            floors_bytes: 0,
            beyond_bytes: 0,
            host_bytes: 0,
            pods_bytes: 0,
        }
    }

    /// Whether this is the GPU that the slot has.
    pub fn has(&self, slot: &Slot) -> bool {
        slot.on.as_ref() == Some(&self.gpu.name)
    }

    /// Whether the GPU is of the group that the tenant names, and takes it.
    pub fn may_use(&self, slot: &Slot) -> bool {
        let takes = !self.gpu.going || self.has(slot);
        takes && slot.group.as_ref().is_none_or(|group| *group == self.gpu.group)
    }

    /// Device memory above all floors, bytes.
    pub fn left_bytes(&self) -> u64 {
        self.foreseen_bytes().saturating_sub(self.beyond_bytes)
    }

    /// Device memory above all floors as they were foreseen, bytes.
    fn foreseen_bytes(&self) -> u64 {
        self.gpu.expected_bytes().unwrap_or(u64::MAX).saturating_sub(self.floors_bytes)
    }

    /// What is missing for the slot here; `None` = it fits.
    pub fn misfit(&self, slot: &Slot) -> Option<Misfit> {
        let Some(demand) = slot.demand_on(self.gpu) else { return Some(Misfit::Waits) };
        let missing =
            |wanted: u64, left: u64| wanted.checked_sub(left).filter(|bytes| *bytes > 0).map(Reverse);
        if self.tenants.contains(&slot.tenant.as_str()) {
            return Some(Misfit::SameTenant);
        }
        if self.alone || (slot.alone && !self.tenants.is_empty()) {
            return Some(Misfit::Alone);
        }
        let stays = self.has(slot);
        let serves = stays && slot.serves;
        if self.uninspected && !serves {
            return Some(Misfit::Uninspected);
        }
        if self.unheard && !stays {
            return Some(Misfit::Unheard);
        }
        if self.tenants.len() >= self.gpu.most_slots() {
            return Some(Misfit::Full);
        }
        let left = match stays {
            _ if serves => self.gpu.expected_bytes().unwrap_or(u64::MAX),
            true => self.foreseen_bytes(),
            false => self.left_bytes(),
        };
        if let Some(bytes) = missing(demand.floor_bytes, left) {
            return Some(Misfit::Device(bytes));
        }
        if serves || (stays && slot.admitted) {
            return None;
        }
        let host = self.gpu.host_bytes.saturating_sub(self.host_bytes);
        let node = self.gpu.node_bytes.map_or(u64::MAX, |node| node.saturating_sub(self.pods_bytes));
        let lacking = [missing(demand.host_bytes, host), missing(demand.pod.bytes(), node)];
        lacking.into_iter().flatten().min().map(Misfit::Host)
    }

    /// Whether the slot, which is here, would fit but for the floors of others, of whom somebody serves. Where nobody does the GPU
    /// has turned out too small for those who came to it.
    pub fn outgrown(&self, slot: &Slot) -> bool {
        let own = slot.demand_on(self.gpu).map_or(u64::MAX, |demand| demand.floor_bytes);
        let alone = self.gpu.expected_bytes().is_none_or(|all| own <= all);
        self.serves && alone && matches!(self.misfit(slot), Some(Misfit::Device(_)))
    }

    /// Takes back the room of a slot that others have outgrown: it shares, was inspected and does not serve.
    pub fn leave(&mut self, slot: &Slot) {
        let demand = slot.demand_on(self.gpu).unwrap_or_default();
        self.tenants.retain(|tenant| *tenant != slot.tenant);
        self.floors_bytes = self.floors_bytes.saturating_sub(demand.floor_bytes);
        self.beyond_bytes = self.beyond_bytes.saturating_sub(beyond(slot, &demand));
        self.host_bytes = self.host_bytes.saturating_sub(demand.host_bytes);
        self.pods_bytes = self.pods_bytes.saturating_sub(demand.pod.bytes());
    }

    /// Gives the slot room here. Answers the GPU's name.
    pub fn take(&mut self, slot: &'a Slot) -> String {
        let demand = slot.demand_on(self.gpu).unwrap_or_default();
        self.tenants.push(&slot.tenant);
        self.alone |= slot.alone;
        self.uninspected |= slot.demand.is_none();
        self.serves |= slot.serves && self.has(slot);
        self.floors_bytes += demand.floor_bytes;
        if self.has(slot) {
            self.unheard |= slot.unheard;
            self.beyond_bytes = self.beyond_bytes.saturating_add(beyond(slot, &demand));
        }
        self.host_bytes = self.host_bytes.saturating_add(demand.host_bytes);
        self.pods_bytes = self.pods_bytes.saturating_add(demand.pod.bytes());
        self.gpu.name.clone()
    }
}

/// What a slot has told beyond what was foreseen, bytes.
fn beyond(slot: &Slot, demand: &Demand) -> u64 {
    slot.told_floor_bytes.saturating_sub(demand.chunks_bytes())
}

//! Where each layer's KV is: a page table with layers for pages, changed in two phases.
//!
//! A swap first takes a slot at its destination and notes it; the copy runs; only when it is confirmed does the layer reside
//! there and its old slot is free. A copy that failed leaves the layer where it was. No layer has a place of its own.
//!
//! Source: Pie 3.2, Fig. 3.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A side of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
}

/// What is done with a layer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Idle,
    /// It is computed with.
    Compute,
    /// It is copied to the device.
    SwapIn,
    /// It is copied to the host.
    SwapOut,
}

/// One layer's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its slot on the device, also while a copy is on its way there.
    pub device: Option<u16>,
    /// Its slot on the host, also while a copy is on its way there.
    pub host: Option<u16>,
    /// Where it is for certain.
    pub resides: Side,
    /// What is done with it.
    pub operation: Operation,
}

/// A swap that has begun: copy `layer` from one slot to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The layer, from 0.
    pub layer: u16,
    /// Where it goes.
    pub to: Side,
    /// Its slot on the device.
    pub device: u16,
    /// Its slot on the host.
    pub host: u16,
}

/// The table of all layers, and the slots that are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    entries: Vec<Entry>,
    free_device: BTreeSet<u16>,
    free_host: BTreeSet<u16>,
}

impl Mapping {
    /// The first layers on the device, as many as it has slots for, the others on the host.
    ///
    /// # Panics
    /// If both sides together have too few slots.
    pub fn new(layers: u16, device_slots: u16, host_slots: u16) -> Mapping {
        let on_device = layers.min(device_slots);
        assert!(layers - on_device <= host_slots, "every layer is somewhere");
        let device = |slot| Entry {
            device: Some(slot),
            host: None,
            resides: Side::Device,
            operation: Operation::Idle,
        };
        let host =
            |slot| Entry { device: None, host: Some(slot), resides: Side::Host, operation: Operation::Idle };
        Mapping {
            entries: (0..on_device).map(device).chain((0..layers - on_device).map(host)).collect(),
            free_device: (on_device..device_slots).collect(),
            free_host: (layers - on_device..host_slots).collect(),
        }
    }

    /// All rows, front first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether `layer` may be computed with: it is on the device for certain and no copy of it runs.
    pub fn computable(&self, layer: u16) -> bool {
        let entry = &self.entries[usize::from(layer)];
        entry.resides == Side::Device && entry.operation == Operation::Idle
    }

    /// Whether a swap to this side is under way.
    pub fn swapping(&self, to: Side) -> bool {
        self.entries.iter().any(|entry| entry.operation == swap_to(to))
    }

    /// Whether a slot is free on this side.
    pub fn has_room(&self, side: Side) -> bool {
        match side {
            Side::Device => !self.free_device.is_empty(),
            Side::Host => !self.free_host.is_empty(),
        }
    }

    /// Phase one: the destination is noted. None when it has no free slot.
    ///
    /// # Panics
    /// If the layer is there already or something is done with it.
    pub fn begin(&mut self, layer: u16, to: Side) -> Option<Swap> {
        let entry = &mut self.entries[usize::from(layer)];
        assert!(
            entry.resides != to && entry.operation == Operation::Idle,
            "an idle layer goes to the other side"
        );
        match to {
            Side::Device => entry.device = Some(self.free_device.pop_first()?),
            Side::Host => entry.host = Some(self.free_host.pop_first()?),
        }
        entry.operation = swap_to(to);
        let (device, host) = (entry.device?, entry.host?);
        Some(Swap { layer, to, device, host })
    }

    /// Phase two: the copy is confirmed, the layer resides there and its old slot is free.
    ///
    /// # Panics
    /// If no such swap is under way.
    pub fn commit(&mut self, swap: Swap) {
        self.end(swap, swap.to);
    }

    /// The copy failed or was broken off: the layer stays where it was.
    ///
    /// # Panics
    /// If no such swap is under way.
    pub fn abandon(&mut self, swap: Swap) {
        let stays = match swap.to {
            Side::Device => Side::Host,
            Side::Host => Side::Device,
        };
        self.end(swap, stays);
    }

    fn end(&mut self, swap: Swap, resides: Side) {
        let entry = &mut self.entries[usize::from(swap.layer)];
        assert!(entry.operation == swap_to(swap.to), "only a swap under way ends");
        (entry.resides, entry.operation) = (resides, Operation::Idle);
        let freed = match resides {
            Side::Device => entry.host.take().map(|slot| self.free_host.insert(slot)),
            Side::Host => entry.device.take().map(|slot| self.free_device.insert(slot)),
        };
        assert!(freed == Some(true), "the slot that a layer leaves was its own");
    }

    /// The layer's compute begins.
    ///
    /// # Panics
    /// If it may not be computed with.
    pub fn begin_compute(&mut self, layer: u16) {
        assert!(self.computable(layer), "a layer is computed with once it is here for certain");
        self.entries[usize::from(layer)].operation = Operation::Compute;
    }

    /// The layer's compute has ended.
    ///
    /// # Panics
    /// If it had not begun.
    pub fn end_compute(&mut self, layer: u16) {
        let entry = &mut self.entries[usize::from(layer)];
        assert!(entry.operation == Operation::Compute, "compute ends after it has begun");
        entry.operation = Operation::Idle;
    }
}

fn swap_to(side: Side) -> Operation {
    match side {
        Side::Device => Operation::SwapIn,
        Side::Host => Operation::SwapOut,
    }
}

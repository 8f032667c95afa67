//! Records where each layer's KV is: a page table with layers as pages and two-phase updates.
//!
//! A swap first reserves a slot at its destination. When the copy is confirmed, the layer resides there and its old
//! slot is free. After a failed copy the layer stays where it was. Layers have no fixed slots.
//!
//! Source: Pie 3.2, Fig. 3.

use std::collections::BTreeSet;

/// A side of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
}

/// The operation on a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Idle,
    /// Computing with the layer.
    Compute,
    /// Copying to the device.
    SwapIn,
    /// Copying to the host.
    SwapOut,
}

/// A layer's table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its slot on the device, also during a copy to it.
    pub device: Option<u16>,
    /// Its slot on the host, also during a copy to it.
    pub host: Option<u16>,
    /// The side with the confirmed copy.
    pub resides: Side,
    /// The current operation.
    pub operation: Operation,
}

/// A swap in progress: copies `layer` from one slot to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The layer, from 0.
    pub layer: u16,
    /// The destination.
    pub to: Side,
    /// Its slot on the device.
    pub device: u16,
    /// Its slot on the host.
    pub host: u16,
}

/// The entries of all layers, and the free slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    entries: Vec<Entry>,
    free_device: BTreeSet<u16>,
    free_host: BTreeSet<u16>,
}

impl Mapping {
    /// Places the first layers on the device until its slots are full, the others on the host.
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

    /// Returns all entries in layer order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether `layer` can be computed: it resides on the device and no operation is in progress.
    pub fn computable(&self, layer: u16) -> bool {
        let entry = &self.entries[usize::from(layer)];
        entry.resides == Side::Device && entry.operation == Operation::Idle
    }

    /// Whether a swap to this side is in progress.
    pub fn swapping(&self, to: Side) -> bool {
        self.entries.iter().any(|entry| entry.operation == swap_to(to))
    }

    /// Whether this side has a free slot.
    pub fn has_free_slot(&self, side: Side) -> bool {
        match side {
            Side::Device => !self.free_device.is_empty(),
            Side::Host => !self.free_host.is_empty(),
        }
    }

    /// Phase one: reserves the destination. Returns `None` if it has no free slot.
    ///
    /// # Panics
    /// If the layer is already there, or an operation is in progress.
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

    /// Phase two: confirms the copy. The layer resides at the destination and its old slot is free.
    ///
    /// # Panics
    /// If no such swap is in progress.
    pub fn commit(&mut self, swap: Swap) {
        self.end(swap, swap.to);
    }

    /// Ends a failed or cancelled copy: the layer stays where it was.
    ///
    /// # Panics
    /// If no such swap is in progress.
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

    /// Begins the layer's compute.
    ///
    /// # Panics
    /// If the layer cannot be computed.
    pub fn begin_compute(&mut self, layer: u16) {
        assert!(self.computable(layer), "a layer is computed with once it is here for certain");
        self.entries[usize::from(layer)].operation = Operation::Compute;
    }

    /// Ends the layer's compute.
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

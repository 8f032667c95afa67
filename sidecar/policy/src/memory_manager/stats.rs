//! Read access to the memory manager, for metrics, log fields and the memory map.

use alloc::vec::Vec;

use super::{Failed, MemoryManager, StepStats};
use crate::action::Address;
use crate::chunk_table::{ChunkTable, Owner, State};
use crate::geometry::Geometry;
use crate::ids::{ActionId, ChunkId, LayerId, SlotId};
use crate::kv::KvCounts;
use crate::params::Params;
use crate::reason::Reason;
use crate::step_model::Layout;

/// Where the weights of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// The slot it shares; none for a resident layer.
    pub slot: Option<SlotId>,
    /// State of its own chunks, or of its slot.
    pub state: State,
    /// Its weights are complete at its addresses now.
    pub present: bool,
}

impl MemoryManager {
    /// Sizes of the tenant.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Tunables.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The owners of all chunks.
    pub fn ledger(&self) -> &ChunkTable {
        self.chunks.table()
    }

    /// The address table, for the backend's audit. While a Reback is pending the backend can be one transaction ahead.
    pub fn addresses(&self) -> impl Iterator<Item = (Address, ChunkId)> + '_ {
        self.chunks.ownership().addresses()
    }

    /// The action was ordered and has not ended: only its completion may be passed on.
    pub fn awaits(&self, action: ActionId) -> bool {
        self.pending.contains(action)
    }

    /// Figures of KV.
    pub fn kv_counts(&self) -> KvCounts {
        self.kv.counts()
    }

    /// The layout of moving layers.
    pub fn layout(&self) -> &Layout {
        self.weights.layout()
    }

    /// Duration of a decode step with its waits for moving layers, by measured times, nanoseconds; 0 while none moves.
    /// Without prompts.
    pub fn streaming_ns(&self) -> u64 {
        self.cost().streaming_ns(self.layout())
    }

    /// Layers that remapping may take at most. The slot that they pass through counts against the cap as well.
    pub fn cap_layers(&self) -> u16 {
        self.sizes.cap_m.saturating_sub(1)
    }

    /// Where each layer is, front first.
    pub fn residency(&self) -> Vec<Residency> {
        (0..self.sizes.layers).map(|l| self.residency_of(LayerId(l))).collect()
    }

    fn residency_of(&self, layer: LayerId) -> Residency {
        let slot = self.chunks.ownership().slot_of[layer.index()];
        let holder = slot.map_or(Owner::WeightsLayer(layer), Owner::Slot);
        let shown = slot.and_then(|s| self.weights.slots().contents()[s.index()]);
        let state = self.chunks.table().contents(holder);
        let present = match slot {
            Some(_) => shown.is_some_and(|(l, g)| l == layer && state == State::Committed(g)),
            None => matches!(state, State::Committed(_)),
        };
        Residency { slot, state, present }
    }

    /// How often each reason applied: actions ordered, blocks evicted, remaps declined, failures.
    pub fn counted(&self, reason: Reason) -> u64 {
        self.counters.decisions()[reason as usize]
    }

    /// Bytes that changed their owner for each reason: weights, KV and activations alike. For loans, the bytes that
    /// passed between the two tenants.
    pub fn moved_bytes(&self, reason: Reason) -> u64 {
        self.counters.moved_chunks(reason).saturating_mul(self.geometry.chunk_bytes)
    }

    /// Why the layout in force was chosen.
    pub fn layout_reason(&self) -> Reason {
        self.weights.load_reason()
    }

    /// Measured times and bandwidth.
    pub fn step_stats(&self) -> &StepStats {
        &self.step_stats
    }

    /// Why the tenant cannot be served, when the backend has failed for good.
    pub fn failed(&self) -> Option<Failed> {
        self.failure
    }

    /// Copies that had to be repeated.
    pub fn fill_retries(&self) -> u64 {
        self.weights.retries()
    }

    /// Chunks of the activation range that are backed.
    pub fn activation_chunks(&self) -> u32 {
        self.chunks.ownership().activation.len() as u32
    }
}

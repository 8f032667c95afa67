//! Figures for metrics, log fields, the memory map and audits. No decision reads them.

use alloc::vec::Vec;

use crate::action::Address;
use crate::chunk_table::{ChunkTable, Owner, State};
use crate::chunks::Chunks;
use crate::ellm::BufferController;
use crate::geometry::Geometry;
use crate::ids::{ChunkId, LayerId, SlotId};
use crate::kv::layer_offload::Placement;
use crate::kv::{Kv, KvCounts};
use crate::offload::Offload;
use crate::orders::Orders;
use crate::reason::Reason;
use crate::sizes::Sizes;
use crate::step_model::Layout;
use crate::weights::Weights;

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

/// Figures of a tenant's memory.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    pub(in crate::memory_manager) chunks: &'a Chunks,
    pub(in crate::memory_manager) kv: &'a Kv,
    pub(in crate::memory_manager) weights: &'a Weights,
    pub(in crate::memory_manager) offload: &'a Offload,
    pub(in crate::memory_manager) orders: &'a Orders,
    pub(in crate::memory_manager) sizes: &'a Sizes,
    pub(in crate::memory_manager) geometry: &'a Geometry,
}

impl<'a> Figures<'a> {
    /// Figures of KV.
    pub fn kv_counts(&self) -> KvCounts {
        self.kv.counts()
    }

    /// The layout of moving layers.
    pub fn layout(&self) -> &'a Layout {
        self.weights.layout()
    }

    /// Why the layout in force was chosen.
    pub fn layout_reason(&self) -> Reason {
        self.weights.load_reason()
    }

    /// Where each layer is, front first.
    pub fn residency(&self) -> Vec<Residency> {
        (0..self.sizes.layers).map(|l| self.residency_of(LayerId(l))).collect()
    }

    /// Layers that remapping may take at most. The slot that they pass through counts against the cap as well.
    pub fn cap_layers(&self) -> u16 {
        self.sizes.cap_m.saturating_sub(1)
    }

    /// How often each reason applied: actions ordered, blocks evicted, remaps declined, failures.
    pub fn counted(&self, reason: Reason) -> u64 {
        self.orders.counters().decisions()[reason as usize]
    }

    /// Bytes that changed their owner for each reason: weights, KV and activations alike. For loans, the bytes that
    /// passed between the two tenants.
    pub fn moved_bytes(&self, reason: Reason) -> u64 {
        self.orders.counters().moved_chunks(reason).saturating_mul(self.geometry.chunk_bytes)
    }

    /// Bytes of KV that were fetched for steps.
    pub fn fetched_bytes(&self) -> u64 {
        self.offload.fetched_bytes()
    }

    /// Chunks of the activation range that are backed.
    pub fn activation_chunks(&self) -> u32 {
        self.chunks.activation_chunks()
    }

    /// The owners of all chunks.
    pub fn ledger(&self) -> &'a ChunkTable {
        self.chunks.table()
    }

    /// The address table, for the backend's audit. While a transaction is pending the backend can be one transaction
    /// ahead.
    pub fn addresses(&self) -> impl Iterator<Item = (Address, ChunkId)> + use<'a> {
        self.chunks.ownership().addresses()
    }

    /// Addresses that back a chunk of another owner until the next transaction.
    pub fn stale_addresses(&self) -> u32 {
        self.chunks.ownership().stale.len() as u32
    }

    /// The placement in force.
    pub fn placement(&self) -> &'a Placement {
        self.kv.layer_offload().placement()
    }

    /// Bytes of the host tier that prompts may use now; 0 under a policy that offloads no prompts.
    pub fn prefill_buffer_bytes(&self) -> u64 {
        let kv_blocks = self.offload.prompts_in_force().map_or(0, BufferController::logical);
        kv_blocks.saturating_mul(self.geometry.kv_block_bytes())
    }

    /// The state of offloaded prompts, for the digest.
    pub fn prefill_digest(&self) -> u64 {
        self.offload.prompts_digest()
    }

    fn residency_of(&self, layer: LayerId) -> Residency {
        let slot = self.chunks.ownership().slot_of[layer.index()];
        let holder = slot.map_or(Owner::WeightsLayer(layer), Owner::Slot);
        let shown = slot.and_then(|s| self.weights.slots().contents()[s.index()]);
        let state = self.chunks.table().contents(holder);
        let present = match slot {
            Some(_) => shown.is_some_and(|(l, g)| l == layer && state == State::Filled(g)),
            None => matches!(state, State::Filled(_)),
        };
        Residency { slot, state, present }
    }
}

//! Borrows of parts, and values that several decisions read. Nothing here orders an action.

use super::{MemoryManager, SleepState};
use crate::chunks::Chunks;
use crate::cost::{CostModel, LayoutSearch};
use crate::geometry::Geometry;
use crate::kv::Kv;
use crate::loans::transfers::LoanTransfers;
use crate::offload::Offloading;
use crate::revert::Pressure;
use crate::sizes::Sizes;
use crate::weights::WeightCopies;
use crate::whole_prompts::WholePrompts;

/// The pressure on KV. What may go back is counted as layers: `alpha` of them, each of `layer_chunks` chunks. Chunks of
/// peers count as layers of one chunk.
pub(super) fn pressure(
    (kv, chunks): (&Kv, &Chunks),
    (sizes, geometry): (&Sizes, &Geometry),
    (alpha, layer_chunks): (u16, u32),
) -> Pressure {
    let bytes = |chunks: u32| u64::from(chunks) * geometry.chunk_bytes;
    Pressure {
        spare_bytes: bytes(chunks.free_count() + kv.idle_chunks_above(sizes.kv_guaranteed)),
        used_bytes: bytes(kv.needed_layer_blocks().div_ceil(sizes.layer_blocks_per_chunk)),
        layer_bytes: bytes(layer_chunks),
        alpha,
    }
}

impl MemoryManager {
    /// The parts that carry out what is decided about offloaded KV.
    pub(super) fn offloading(&mut self) -> Offloading<'_> {
        Offloading {
            in_backoff: self.in_backoff(),
            has_failed: self.failure.is_some(),
            kv: &mut self.kv,
            offload: &mut self.offload,
            orders: &mut self.orders,
            generations: &mut self.generations,
            step_stats: &mut self.step_stats,
            chunks: &self.chunks,
            params: &self.params,
            sizes: &self.sizes,
            geometry: &self.geometry,
        }
    }

    /// The parts that copies of weights concern.
    pub(super) fn weight_copies(&mut self) -> WeightCopies<'_> {
        WeightCopies {
            weights: &mut self.weights,
            generations: &mut self.generations,
            chunks: &mut self.chunks,
            orders: &mut self.orders,
            step_stats: &mut self.step_stats,
            loaded: self.loaded,
            failed: self.failure.is_some(),
        }
    }

    /// The parts that a transfer changes.
    pub(super) fn transfers(&mut self) -> LoanTransfers<'_> {
        LoanTransfers {
            loans: &mut self.loans,
            chunks: &mut self.chunks,
            orders: &mut self.orders,
            transitions: &mut self.transitions,
        }
    }

    /// The parts that decide how much activation space whole prompts get.
    pub(super) fn whole_prompts(&self) -> WholePrompts<'_> {
        WholePrompts {
            chunks: &self.chunks,
            chunk_pool: self.kv.chunk_pool(),
            sizes: &self.sizes,
            in_backoff: self.in_backoff(),
        }
    }

    /// What layouts and reclaim options cost, by measured times.
    #[inline]
    pub(super) fn cost(&self) -> CostModel<'_> {
        CostModel::new(&self.step_stats, &self.params)
    }

    /// Which layouts are possible, and which is best.
    #[inline]
    pub(super) fn layout_search(&self) -> LayoutSearch<'_> {
        LayoutSearch {
            cost: self.cost(),
            sizes: &self.sizes,
            current: self.weights.layout(),
            base: &self.base,
            forced: self.forced,
        }
    }

    /// The backend failed within the back-off: no transition and no transfer begins now. A step that needs none begins.
    #[inline]
    pub(super) fn in_backoff(&self) -> bool {
        self.transitions.in_backoff(self.orders.boundaries())
    }

    /// Everything is mapped again, if it is.
    pub(super) fn on_awake(&mut self) {
        if self.sleep.state() == SleepState::Waking && !self.chunks.is_unmapped() {
            self.sleep.on_awake();
        }
    }
}

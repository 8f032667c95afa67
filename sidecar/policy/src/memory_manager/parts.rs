//! Borrows of parts, and values that several decisions read. Nothing here orders an action.

use super::{MemoryManager, SleepState};
use crate::cost::{CostContext, CostModel, LayoutSearch};
use crate::geometry::BLOCK_TOKENS;
use crate::ids::LayerId;
use crate::loans::lendable_layers::{LendableLayers, layers_that_hide};
use crate::loans::reclaim::ActivationSpace;
use crate::loans::transfers::LoanTransfers;
use crate::offload::Offloading;
use crate::weights::WeightCopies;
use crate::whole_prompts::WholePrompts;

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
            change: &mut self.change,
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
    pub(super) fn cost(&self) -> CostModel<'_> {
        CostModel::new(&self.step_stats, &self.params)
    }

    /// The running requests, as reclaim options hurt them.
    pub(super) fn cost_context(&self) -> CostContext {
        self.cost().context(self.kv.requests().running().count() as u32)
    }

    /// Which layouts are possible, and which is best.
    pub(super) fn layout_search(&self) -> LayoutSearch<'_> {
        LayoutSearch {
            cost: self.cost(),
            sizes: &self.sizes,
            current: self.weights.layout(),
            forced: self.forced,
        }
    }

    /// The cost if requests lose these chunks of KV.
    pub(super) fn dropping(&self, context: &CostContext, chunks: u32) -> u64 {
        let layer_blocks = u64::from(chunks) * u64::from(self.sizes.layer_blocks_per_chunk);
        if layer_blocks == 0 {
            return 0;
        }
        let used = u64::from(self.kv.needed_layer_blocks());
        let layer_blocks = layer_blocks.min(used);
        let requests = (u64::from(context.requests) * layer_blocks).div_ceil(used.max(1)) as u32;
        let tokens = layer_blocks * u64::from(BLOCK_TOKENS) / u64::from(self.kv.layers());
        self.params.cost_rule().displaced_kv_loss(context, requests, tokens)
    }

    /// The backend failed a change within the back-off: no other change is tried now; steps without a change continue.
    pub(super) fn in_backoff(&self) -> bool {
        self.change.in_backoff(self.orders.boundaries())
    }

    /// Everything is mapped again, if it is.
    pub(super) fn on_awake(&mut self) {
        if self.sleep.state() == SleepState::Waking && !self.chunks.is_unmapped() {
            self.sleep.on_awake();
        }
    }

    /// The activation space. While chunks are lent, it keeps those of the smallest step: they may have been lent under
    /// a policy whose floor counts on these.
    pub(super) fn activation_space(&self) -> ActivationSpace {
        let is_lender = self.loans.lent() > 0;
        ActivationSpace {
            held: self.chunks.activation_chunks(),
            kept: if is_lender { self.sizes.activation_least } else { self.sizes.activation_min },
            converts: self.sizes.activation_kept.is_some(),
        }
    }

    /// Layers that an inactive tenant can lend, last one first. With moving and absent layers at most the cap.
    pub(super) fn lendable_layers(&self) -> LendableLayers {
        let idle = !self.loans.is_active() && self.loaded;
        let max_moving = self.sizes.movable_m.filter(|_| idle).unwrap_or(0);
        let layers = (0..self.sizes.layers).rev().map(LayerId);
        let own = layers.filter(|layer| !self.chunks.ownership().layers[layer.index()].is_empty());
        let own = own.map(|layer| (layer, self.sizes.slabs[layer.index()]));
        LendableLayers::new(
            own,
            usize::from(max_moving).saturating_sub(self.displaced_layers()),
            self.hidden_layers(),
        )
    }

    /// Layers without memory of their own.
    pub(super) fn displaced_layers(&self) -> usize {
        self.weights.layout().moving.len() + usize::from(self.chunks.absent_layers())
    }

    /// Layers whose copies hide when the tenant wakes; all of them, if no request waits.
    pub(super) fn hidden_layers(&self) -> usize {
        if !self.loans.is_busy() {
            return usize::MAX;
        }
        let transfer_ns = self.step_stats.transfer_ns().into_iter().max().unwrap_or(0);
        layers_that_hide(self.step_stats.token_compute_ns(), transfer_ns, self.chunks.absent_layers())
    }
}

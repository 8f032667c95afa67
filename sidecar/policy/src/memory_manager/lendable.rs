//! What could be lent to a peer, and what must change first.

use alloc::vec::Vec;

use super::MemoryManager;
use crate::change::TransitionTarget;
use crate::ids::LayerId;
use crate::loans::TransferKind;

impl MemoryManager {
    /// Free chunks, and those that may be created and were not.
    pub(super) fn free_after_eviction(&self) -> u32 {
        self.chunks.free_count() + self.spare_chunks()
    }

    pub(super) fn spare_chunks(&self) -> u32 {
        self.loans
            .balance
            .budget()
            .saturating_sub(self.chunks.table().created() + self.loans.recreation.chunks())
    }

    /// KV chunks that could be emptied without dropping a block in use.
    pub(super) fn idle_kv_chunks(&self) -> u32 {
        let idle = self.kv.chunk_pool().free_layer_blocks() + self.kv.evictable_layer_blocks();
        (idle / self.sizes.layer_blocks_per_chunk).min(self.kv_chunks_above_guarantee())
    }

    pub(super) fn kv_chunks_above_guarantee(&self) -> u32 {
        self.kv.chunk_pool().backed().saturating_sub(self.sizes.kv_guaranteed)
    }

    pub(super) fn lendable_weights(&self) -> u32 {
        let layers = self.lendable_layers().take(self.layers_that_hide());
        layers.map(|layer| self.sizes.slabs[layer.index()]).sum()
    }

    /// Layers that a tenant can lend and restore at the cost of at most one step, T_T * N <= T_compute, absent ones
    /// included: a tenant that waits for its time slice needs them in that slice. All layers, if no request waits.
    fn layers_that_hide(&self) -> usize {
        let compute_ns = self.step_stats.token_compute_ns();
        if !self.loans.is_busy() || compute_ns == 0 {
            return usize::MAX;
        }
        let transfer_ns = self.step_stats.transfer_ns().into_iter().max().unwrap_or(0);
        let hidden = compute_ns.checked_div(u128::from(transfer_ns)).unwrap_or(u128::MAX);
        (hidden.min(u128::from(u16::MAX)) as usize).saturating_sub(usize::from(self.chunks.absent_layers()))
    }

    /// Layers that an inactive tenant can lend, last one first, since it wakes front first. With moving and absent
    /// layers at most the cap.
    fn lendable_layers(&self) -> impl Iterator<Item = LayerId> + '_ {
        let idle = !self.loans.is_active() && self.loaded;
        let max_moving = self.sizes.movable_m.filter(|_| idle).unwrap_or(0);
        let left = usize::from(max_moving).saturating_sub(self.absent_lendable_layers());
        let layers = (0..self.sizes.layers).rev().map(LayerId);
        layers.filter(|layer| !self.chunks.ownership().layers[layer.index()].is_empty()).take(left)
    }

    /// Layers without memory of their own.
    pub(super) fn absent_lendable_layers(&self) -> usize {
        self.weights.layout().moving.len() + usize::from(self.chunks.absent_layers())
    }

    /// The change that frees `missing` more chunks: unused cache first, then the last layers of an inactive tenant; for
    /// a return also KV in use, moving layers, and last idle activation space.
    pub(super) fn capacity_for(&self, missing: u32, claim: TransferKind) -> Option<TransitionTarget> {
        let idle = self.idle_kv_chunks().min(missing);
        let cheap =
            |layers: &u16| self.loans.forces_reclaim() || usize::from(*layers) <= self.layers_that_hide();
        if let Some(layers) = self.layers_for(missing - idle).filter(cheap) {
            return Some(TransitionTarget::Vacate { kv_chunks: idle, layers });
        }
        if claim == TransferKind::Lend {
            return None;
        }
        let kv_chunks = self.kv_chunks_above_guarantee().min(missing);
        let layers =
            self.layers_for(missing - kv_chunks).map(|layers| TransitionTarget::Vacate { kv_chunks, layers });
        layers
            .or_else(|| self.smaller_layout(missing - kv_chunks).map(TransitionTarget::Layout))
            .or_else(|| self.idle_activations(missing - kv_chunks))
    }

    /// The fewest last layers that hold these chunks.
    fn layers_for(&self, chunks: u32) -> Option<u16> {
        let mut missing = chunks;
        let mut count = 0;
        let mut layers = self.lendable_layers();
        while missing > 0 {
            missing = missing.saturating_sub(self.sizes.slabs[layers.next()?.index()]);
            count += 1;
        }
        Some(count)
    }

    /// The last `count` layers that have chunks of their own.
    pub(super) fn last_own_layers(&self, count: u16) -> Vec<LayerId> {
        self.lendable_layers().take(usize::from(count)).collect()
    }
}

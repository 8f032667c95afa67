//! Loans from peers: when the tenant asks for one, and when it returns one unasked.

use alloc::vec::Vec;

use super::{MemoryManager, StepNeed};

impl MemoryManager {
    /// The tenant trades: there are peers, and the policy may reclaim weights (`Recompute` keeps to its share).
    pub(super) fn trades(&self) -> bool {
        self.loans.demand.is_enabled() && self.sizes.movable_m.is_some()
    }

    /// Loan sizes that help a step which lacks more than `had_layer_blocks`, free chunks included. Empty if peers cannot
    /// be asked, or refused since the last boundary.
    pub(super) fn loan_sizes(&self, need: &StepNeed, to_load: u32, had_layer_blocks: u32) -> Vec<u32> {
        if !self.trades() || self.loans.demand.is_denied() || self.in_backoff() {
            return Vec::new();
        }
        self.shortfall_steps(need, to_load, had_layer_blocks)
    }

    /// Chunks that each request of the step lacks together with those before it, as far as KV may grow. The `to_load`
    /// layer blocks from the host tier come first.
    fn shortfall_steps(&self, need: &StepNeed, to_load: u32, had_layer_blocks: u32) -> Vec<u32> {
        let per = self.sizes.layer_blocks_per_chunk;
        let room = self.sizes.kv_limit - self.kv.chunk_pool().backed() - self.free_kv_chunks();
        let layer_blocks = need.kv_blocks.iter().scan(to_load, |layer_blocks, (request, kv_blocks)| {
            *layer_blocks += kv_blocks * self.kv_block_layer_blocks(need, *request);
            Some(*layer_blocks)
        });
        let chunks = core::iter::once(to_load)
            .chain(layer_blocks)
            .map(|b| b.saturating_sub(had_layer_blocks).div_ceil(per));
        let mut steps: Vec<u32> = chunks.filter(|chunks| (1..=room).contains(chunks)).collect();
        steps.dedup();
        steps
    }
}

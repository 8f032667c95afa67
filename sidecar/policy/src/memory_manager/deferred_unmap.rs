//! What eLLM keeps off the path of a step that waits for memory (5.1): an inflation also takes what the next tokens
//! need, and only maps; old addresses are unmapped later.

use alloc::vec::Vec;

use super::prepare_plan::StepDemand;
use super::{MemoryManager, StepNeed};
use crate::action::Action;
use crate::ellm::premap_chunks;
use crate::orders::pending::Change;
use crate::reason::Reason;

impl MemoryManager {
    /// Idle activation chunks that an inflation of `chunks` takes in addition, with `activation` chunks for the step:
    /// every running request is assumed to make one more token, which begins a block at worst. Only idle chunks with
    /// addresses in KV, so that no inflation fails for them.
    pub(super) fn lookahead_chunks(
        &self,
        need: &StepNeed,
        demand: StepDemand,
        activation: u32,
        chunks: u32,
    ) -> u32 {
        let per = self.sizes.layer_blocks_per_chunk;
        let had = self.kv.chunk_pool().free_layer_blocks() + demand.evictable + chunks * per;
        let wanted = (demand.layer_blocks + self.next_step_layer_blocks(need))
            .saturating_sub(had.max(demand.layer_blocks))
            .div_ceil(per);
        let idle = self.chunks.activation_chunks().saturating_sub(activation + chunks);
        let room = (self.sizes.kv_limit - self.kv.chunk_pool().backed()).saturating_sub(chunks);
        premap_chunks(wanted, self.params.premap_bytes, self.geometry.chunk_bytes).min(idle).min(room)
    }

    /// Unmaps them at a boundary with nothing else to do and no waiting request.
    pub(super) fn unmap_deferred(&mut self, out: &mut Vec<Action>) {
        let idle = !self.loans.is_busy() && self.kv.requests().count() == 0;
        if self.chunks.ownership().stale.is_empty() || !idle || !self.is_at_base_layout() || self.in_backoff()
        {
            return;
        }
        let change =
            Change { next: self.chunks.ownership().clone(), layout: None, reason: Reason::UnmapLater };
        self.order_change(change, &[], out);
    }
}

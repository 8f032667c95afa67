//! Remaps that cover a shortfall although tokens wait for the moving layers: what they would be, and carrying one out.

use alloc::vec::Vec;

use super::{MemoryManager, StallsTooLong};
use crate::action::Action;
use crate::reason::Reason;
use crate::step_model::Layout;
use crate::transition::{RemapKind, Transition, TransitionTarget};

/// A remap that covers a shortfall, although tokens wait for the moving layers longer than the allowance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallingRemap {
    layout: Layout,
    /// Wait of a token for the layers that move now, and for those that would, nanoseconds.
    pub(super) stall_ns: [u64; 2],
    pub(super) freed_bytes: u64,
}

impl MemoryManager {
    /// The layout with the fewest moving layers that covers what a step was refused, although it stalls. None if own
    /// layers do not become KV, or not now, or the policy allows no stall. An error if every such layout stalls for
    /// longer than the policy allows.
    pub fn stalling_remap(&self, missing_kv_blocks: u32) -> Option<Result<StallingRemap, StallsTooLong>> {
        let max_permille = self.params.cost_rule().max_stall_permille();
        let remaps = max_permille > 0 && self.forced.is_none() && self.step_stats.compute_known();
        let missing_layer_blocks = missing_kv_blocks.saturating_mul(self.kv.layers());
        let chunks = self
            .chunks_of_layers(missing_layer_blocks)
            .filter(|_| remaps && self.transitions.current().is_none())?;
        if self.transitions.is_declined(RemapKind::Stalling, self.orders.steps(), chunks) {
            return None;
        }
        let Ok(layout) = self.layout_search().freeing(chunks, self.cost().token_share_ns(max_permille))
        else {
            return Some(Err(StallsTooLong { chunks }));
        };
        let freed = self.sizes.weights(self.weights.layout()).saturating_sub(self.sizes.weights(&layout));
        let stall_ns = [self.weights.layout(), &layout].map(|layout| self.cost().stall_ns(layout));
        let freed_bytes = u64::from(freed) * self.geometry.chunk_bytes;
        Some(Ok(StallingRemap { layout, stall_ns, freed_bytes }))
    }

    /// Does not look for such a layout again for a while.
    pub(super) fn decline_stalling_remap(&mut self, declined: StallsTooLong) {
        self.transitions.decline(RemapKind::Stalling, self.orders.steps(), declined.chunks);
    }

    /// Lets these layers move: their chunks become KV. `false` = they do not.
    pub fn apply_stalling_remap(&mut self, stalling: StallingRemap, out: &mut Vec<Action>) -> bool {
        let target = TransitionTarget::Layout(stalling.layout);
        let start = self.transition_start(Transition { target, reason: Reason::RemapStalls });
        let fits = start.is_some();
        start.into_iter().for_each(|start| self.start_transition(start, out));
        fits
    }
}

//! Restores layers after their memory was lent: all of them if they fit, else as moving layers. If peers still hold so
//! much that only the floor is left, idle activation space is freed: the floor counts on its minimum.

use super::view::LoanView;
use crate::cost::CostContext;
use crate::geometry::BLOCK_TOKENS;
use crate::step_model::Layout;
use crate::transition::TransitionTarget;

impl LoanView<'_> {
    /// The target that restores absent layers: all of them if they fit, else moving through slots. `None`: no layout
    /// fits.
    pub(crate) fn restoration(&self) -> Option<TransitionTarget> {
        let own_chunks = self.chunks.weights_held() + self.chunks.free_count();
        let cheapest = self.cheapest_layout(own_chunks).map(TransitionTarget::Layout);
        cheapest.or_else(|| self.last_layout(own_chunks))
    }

    /// Returns the target if [`LoanView::cheapest_layout`] finds none: the evenly spaced layout with the fewest moving
    /// layers that fits once idle activation space is freed, or that freeing first. A tenant whose loan does not come
    /// back has no other way, whatever policy and cap are in force.
    fn last_layout(&self, own_chunks: u32) -> Option<TransitionTarget> {
        let sizes = self.layouts.sizes;
        let room = own_chunks + self.kv.chunk_pool().above(sizes.kv_guaranteed);
        let activation = self.activation_space();
        let max_moving = if self.loans.balance.lent() > 0 { sizes.layers - 1 } else { sizes.cap_m };
        let mut layouts = (2..=max_moving).map(|moving| sizes.evenly(moving));
        let layout = layouts.find(|layout| sizes.weights(layout) <= room + activation.idle())?;
        let missing = sizes.weights(&layout).saturating_sub(room);
        Some(activation.freeing(missing).unwrap_or(TransitionTarget::Layout(layout)))
    }

    /// Of the layouts that fit: the one that the policy ranks lowest, by its stall and by the KV that must go for it.
    /// Layers that hide move before KV goes. Oneiros moves no more of them (T_T * N <= T_compute), unless nothing else
    /// fits; `Unified` takes a stall if requests would lose more.
    fn cheapest_layout(&self, own_chunks: u32) -> Option<Layout> {
        let (sizes, cost) = (self.layouts.sizes, self.layouts.cost);
        let (idle, kv_max) =
            (self.kv.idle_chunks_above(sizes.kv_guaranteed), self.kv.chunk_pool().above(sizes.kv_guaranteed));
        let context = cost.context(self.kv.requests().running().count() as u32);
        let policy = cost.params.policy();
        let mut best: Option<((u64, u64), Layout)> = None;
        for layout in core::iter::once(self.layouts.current.clone()).chain(self.larger_remaps()) {
            let kv_chunks = sizes.weights(&layout).saturating_sub(own_chunks);
            if kv_chunks > kv_max {
                continue;
            }
            let dropped = self.dropping(&context, kv_chunks.saturating_sub(idle));
            let loss = policy.restore_rank(cost.stall_cost(&context, &layout), dropped);
            if best.as_ref().is_none_or(|(min_loss, _)| loss < *min_loss) {
                best = Some((loss, layout));
            }
            if dropped == 0 {
                break; // more layers only stall longer
            }
        }
        best.map(|(_, layout)| layout)
    }

    /// The cost if requests lose these chunks of KV.
    fn dropping(&self, context: &CostContext, chunks: u32) -> u64 {
        let layer_blocks = u64::from(chunks) * u64::from(self.layouts.sizes.layer_blocks_per_chunk);
        if layer_blocks == 0 {
            return 0;
        }
        let used = u64::from(self.kv.needed_layer_blocks());
        let layer_blocks = layer_blocks.min(used);
        let requests = (u64::from(context.requests) * layer_blocks).div_ceil(used.max(1)) as u32;
        let tokens = layer_blocks * u64::from(BLOCK_TOKENS) / u64::from(self.kv.layers());
        self.layouts.cost.params.cost_rule().displaced_kv_loss(context, requests, tokens)
    }
}

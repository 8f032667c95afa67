//! Restores layers after their memory was lent: all of them if they fit, else as moving layers. If peers still hold so
//! much that only the floor is left, idle activation space is freed: the floor counts on its minimum.

use super::{MemoryManager, SleepState};
use crate::change::{Transition, TransitionTarget};
use crate::reason::Reason;
use crate::step_model::Layout;

impl MemoryManager {
    /// Layouts that free more and more layers, beginning with one more than now.
    pub(super) fn larger_remaps(&self) -> impl Iterator<Item = Layout> + Clone + '_ {
        self.layout_search().larger(self.loans.lent() > 0)
    }

    /// The tenant has work and absent layers: restores all if they fit, else lets them move through slots.
    pub(super) fn restore(&mut self) {
        if !self.should_restore_layers() || self.loans.awaits_loans() {
            return;
        }
        let own_chunks = self.chunks.weights_held() + self.chunks.free_count();
        let cheapest = self.cheapest_restore_layout(own_chunks).map(TransitionTarget::Layout);
        match cheapest.or_else(|| self.last_restore_layout(own_chunks)) {
            Some(target) => self.change.decide(Some(Transition { target, reason: Reason::Wake })),
            None => self.loans.set_lacks_room(true),
        }
    }

    /// If no layout chosen by its stall fits: the evenly spaced one with the fewest moving layers that fits after all
    /// idle activation space is freed. A tenant whose loan does not come back has no other way, whatever policy and cap
    /// are in force.
    fn last_restore_layout(&self, own_chunks: u32) -> Option<TransitionTarget> {
        let room = own_chunks + self.kv.chunk_pool().above(self.sizes.kv_guaranteed);
        let activation = self.activation_space();
        let max_moving = if self.loans.lent() > 0 { self.sizes.layers - 1 } else { self.sizes.cap_m };
        let mut layouts = (2..=max_moving).map(|moving| self.sizes.evenly(moving));
        let layout = layouts.find(|layout| self.sizes.weights(layout) <= room + activation.idle())?;
        let missing = self.sizes.weights(&layout).saturating_sub(room);
        Some(activation.freeing(missing).unwrap_or(TransitionTarget::Layout(layout)))
    }

    /// Of the layouts that fit: the one that the policy ranks lowest, by its stall and by the KV that must go for it.
    /// Layers that hide move before KV goes. Oneiros moves no more of them (T_T * N <= T_compute), unless nothing else
    /// fits; `Unified` takes a stall if requests would lose more.
    fn cheapest_restore_layout(&self, own_chunks: u32) -> Option<Layout> {
        let guaranteed = self.sizes.kv_guaranteed;
        let (idle, kv_max) = (self.kv.idle_chunks_above(guaranteed), self.kv.chunk_pool().above(guaranteed));
        let (context, policy) = (self.cost_context(), self.params.policy());
        let mut best: Option<((u64, u64), Layout)> = None;
        for layout in core::iter::once(self.weights.layout().clone()).chain(self.larger_remaps()) {
            let kv_chunks = self.sizes.weights(&layout).saturating_sub(own_chunks);
            if kv_chunks > kv_max {
                continue;
            }
            let dropped = self.dropping(&context, kv_chunks.saturating_sub(idle));
            let loss = policy.restore_rank(self.cost().stall_cost(&context, &layout), dropped);
            if best.as_ref().is_none_or(|(min_loss, _)| loss < *min_loss) {
                best = Some((loss, layout));
            }
            if dropped == 0 {
                break; // more layers only stall longer
            }
        }
        best.map(|(_, layout)| layout)
    }

    /// Layers are absent, and the tenant has work or no peer has their memory any more.
    pub(super) fn should_restore_layers(&self) -> bool {
        match self.sleep.state() {
            SleepState::Suspending | SleepState::Asleep => return false,
            SleepState::Waking => return true,
            SleepState::Awake => {}
        }
        let is_due = self.loans.is_active() || self.loans.nothing_lent(&self.orders.pending);
        is_due && self.chunks.absent_layers() > 0
    }
}

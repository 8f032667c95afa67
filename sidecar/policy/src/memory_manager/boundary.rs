//! A step boundary of a tenant that has loaded. It takes the first due work one action further, in this order: sleep,
//! growth of the share, placement of KV, activation space, loans and share, then a change that the policy wants.

use alloc::vec::Vec;

use super::{MemoryManager, SleepState};
use crate::action::Action;
use crate::orders::pending::Change;
use crate::reason::Reason;

impl MemoryManager {
    /// Decides the next change at this boundary and takes it one action further.
    pub(super) fn at_boundary(&mut self, out: &mut Vec<Action>) {
        match self.sleep.state() {
            SleepState::Suspending => return self.suspend_at_boundary(out),
            SleepState::Waking => return self.wake_at_boundary(out),
            SleepState::Asleep => return self.sleep_at_boundary(out),
            SleepState::Awake => {}
        }
        self.loans.take_growth(self.sizes.useful(), self.chunks.table().created());
        self.offloading().place_kv(out);
        let can_wait = self.change.transition().is_some_and(|goal| !goal.reason.must_happen());
        if can_wait && (self.loans().has_debt() || self.loans().should_restore_layers()) {
            // It may wait for the next step, which waits for what must happen first.
            self.abort_transition();
        }
        if self.change.transition().is_none() && !self.status().weights_loading() {
            self.change.decide(self.whole_prompts().shrink());
        }
        if self.change.transition().is_none() {
            self.take_loan_step(out);
        }
        if self.orders.pending().blocking() {
            return;
        }
        if self.change.transition().is_none() && !self.loans().has_step() {
            let (next, calm) = self.plan_transition();
            calm.into_iter().for_each(|calm| self.change.record_calm(calm));
            self.change.decide(next);
        }
        if self.change.is_due(self.orders.steps(), self.kv.requests().count() > 0) {
            self.advance_transition(out);
        }
        self.unmap_deferred(out);
    }

    /// Unmaps stale addresses at a boundary with nothing else to do and no waiting request: off the path of a step (eLLM
    /// 5.1).
    fn unmap_deferred(&mut self, out: &mut Vec<Action>) {
        let idle = !self.loans.is_busy() && self.kv.requests().count() == 0;
        if self.chunks.ownership().stale.is_empty() || !idle || !self.is_at_base_layout() || self.in_backoff()
        {
            return;
        }
        let change =
            Change { next: self.chunks.ownership().clone(), layout: None, reason: Reason::UnmapLater };
        self.order_change(change, &[], out);
    }

    /// Without new requests the coming boundaries change nothing: everything borrowed has been returned.
    pub fn is_idle(&self) -> bool {
        self.is_at_base_layout() && self.chunks.ownership().stale.is_empty()
    }

    /// As [`MemoryManager::is_idle`], whatever stale addresses are left.
    fn is_at_base_layout(&self) -> bool {
        let layout = self.weights.layout();
        let at_base = match self.forced {
            Some(forced) => *layout == self.sizes.forced_layout(forced),
            None => !self.layout_search().is_remapped(),
        };
        let settled = self.sleep.is_settled();
        at_base
            && settled
            && self.whole_prompts().excess() == 0
            && self.loans().is_settled()
            && self.change.transition().is_none()
            && self.offload_view().is_offload_idle()
            && !self.orders.pending().blocking()
    }
}

//! A step boundary of a tenant that has loaded. It takes the first due work one action further, in this order: sleep,
//! growth of the share, placement of KV, activation space, loans and share, then a transition that the policy wants.
//!
//! An unused tenant sleeps: it gives up every chunk. Its KV goes to the host tier; its weights stay in host memory.
//! It wakes with all layers if they fit, else with moving ones, and its layers load during the first prefill.
//!
//! | suspending | waking |
//! |---|---|
//! | KV goes to the host tier; cache without space is dropped | chunks for the least memory are created |
//! | copies under way are dropped | loans are revoked by the negotiator |
//! | everything is unmapped in one transaction | everything is mapped in one transaction |
//! | the chunks are released | weights are loaded, embeddings first |

use alloc::vec::Vec;

use super::{MemoryManager, SleepState, TransferKind};
use crate::action::Action;
use crate::event::Outcome;
use crate::kv::Swap;
use crate::loans::next_step::LoanStep;
use crate::orders::pending::PendingTransaction;
use crate::reason::Reason;
use crate::step_model::Layout;
use crate::transition::Transition;

impl MemoryManager {
    /// Takes the first due work at this boundary one action further, and decides the next transition.
    pub(super) fn at_boundary(&mut self, out: &mut Vec<Action>) {
        match self.sleep.state() {
            SleepState::Suspending => return self.suspend_at_boundary(out),
            SleepState::Waking => return self.wake_at_boundary(out),
            SleepState::Asleep => return self.sleep_at_boundary(out),
            SleepState::Awake => {}
        }
        self.loans.take_growth(self.sizes.useful(), self.chunks.table().created());
        self.offloading().place_kv(out);
        let can_wait = self.transitions.current().is_some_and(|transition| !transition.reason.must_happen());
        if can_wait && (self.loans().has_debt() || self.loans().should_restore_layers()) {
            // It may wait for the next step, which waits for what must happen first.
            self.abort_transition();
        }
        if self.transitions.current().is_none() && !self.status().weights_loading() {
            self.transitions.decide(self.whole_prompts().shrink());
        }
        if self.transitions.current().is_none() {
            self.take_loan_step(out);
        }
        if self.orders.pending().blocking() {
            return;
        }
        if self.transitions.current().is_none() && !self.loans().has_step() {
            let (next, calm) = self.plan_transition();
            calm.into_iter().for_each(|calm| self.transitions.record_calm(calm));
            self.transitions.decide(next);
        }
        if self.transitions.is_due(self.orders.steps(), self.kv.requests().count() > 0) {
            self.advance_transition(out);
        }
        self.unmap_deferred(out);
    }

    /// Unmaps stale addresses at a boundary with nothing else to do and no waiting request: off the path of a step
    /// (eLLM 5.1).
    fn unmap_deferred(&mut self, out: &mut Vec<Action>) {
        let idle = !self.loans.is_busy() && self.kv.requests().count() == 0;
        if self.chunks.ownership().stale.is_empty() || !idle || !self.is_at_base_layout() || self.in_backoff()
        {
            return;
        }
        let unmap = PendingTransaction {
            next: self.chunks.ownership().clone(),
            layout: None,
            reason: Reason::UnmapLater,
        };
        self.order_transaction(unmap, &[], out);
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
            && self.transitions.current().is_none()
            && self.offload_view().is_offload_idle()
            && !self.orders.pending().blocking()
    }
}

/// Peers and the share, as [`crate::loans`] decides.
impl MemoryManager {
    /// Takes transfers, releases of share and restorations one action further.
    pub(super) fn take_loan_step(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if self.in_backoff() {
            return;
        }
        self.release_uncreated_share();
        let facts = self.loans().boundary_facts();
        let mut step = self.loans.next_step(facts);
        while step == LoanStep::RefuseFirst {
            self.loans.refuse_first();
            step = self.loans.next_step(facts);
        }
        match step {
            LoanStep::RefuseFirst => {}
            LoanStep::Recreate => self.transfers().recreate(u32::MAX, out),
            LoanStep::ReleaseShare(chunks) => self.release_share(chunks, out),
            LoanStep::Send(transfer) => {
                self.loans.on_send();
                self.transfers().send(transfer, out);
            }
            LoanStep::Free { missing, kind } => {
                let loans = self.loans();
                match loans.reclaimable().for_transfer(missing, kind, loans.smaller_layouts()) {
                    Some(target) => {
                        self.transitions.decide(Some(Transition { target, reason: kind.reason() }))
                    }
                    None => self.loans.refuse_first(),
                }
            }
            LoanStep::RestoreLayers => {
                self.loans.on_nothing_queued();
                self.restore_layers();
            }
        }
    }

    /// Takes the release of a share one action further.
    fn release_share(&mut self, chunks: u32, out: &mut Vec<Action>) {
        if !self.transfers().release_share(chunks, out) {
            let loans = self.loans();
            let target = loans.reclaimable().for_smaller_share(chunks, loans.smaller_layouts());
            self.transitions.decide(target.map(|target| Transition { target, reason: Reason::ReleaseShare }));
        }
    }

    /// Releases chunks of the share that do not exist.
    pub(super) fn release_uncreated_share(&mut self) {
        let (created, limits) = (self.chunks.table().created(), self.loans().limits());
        self.loans.release_uncreated(created, self.orders.pending(), limits);
    }

    /// Layers are absent, and no loan is waited for: restores them.
    fn restore_layers(&mut self) {
        let loans = self.loans();
        if !loans.should_restore_layers() || loans.awaits_loans() {
            return;
        }
        match loans.restoration() {
            Some(target) => self.transitions.decide(Some(Transition { target, reason: Reason::Wake })),
            None => self.loans.set_lacks_room(true),
        }
    }
}

/// Falling asleep, sleep and waking.
impl MemoryManager {
    pub(super) fn give_up_cache(&mut self) {
        let given_up = self.kv.evict_cache();
        self.orders.count_many(Reason::PrefixEvicted, given_up);
    }

    /// Takes suspending one action further.
    pub(super) fn suspend_at_boundary(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if self.in_backoff() {
            return;
        }
        if self.transitions.current().is_some() {
            self.abort_transition();
        }
        if self.kv.layer_offload().has_pending_spills() || self.kv.transfers().has_loads() {
            return;
        }
        if self.orders.pending().fetches() {
            return self.orders.drop_copies(Reason::Hibernate, out);
        }
        self.offloading().restore_all();
        if self.kv.blocks().any_on_device() {
            self.order_swap_out(out);
        } else if self.orders.pending().fills() > 0 {
            self.orders.drop_copies(Reason::Hibernate, out);
        } else if !self.chunks.is_unmapped() {
            let unmap = PendingTransaction {
                next: self.chunks.ownership().unmapped(),
                layout: Some(Layout::resident()),
                reason: Reason::Hibernate,
            };
            self.order_transaction(unmap, &[], out);
        } else if self.chunks.table().created() > 0 {
            self.order_release(Reason::Hibernate, out);
        } else {
            self.sleep.on_asleep();
        }
    }

    /// Lends what peers ask for, and releases what they return.
    pub(super) fn sleep_at_boundary(&mut self, out: &mut Vec<Action>) {
        // Chunks that an exited borrower held are created when they are needed.
        self.loans.recreate_nothing();
        self.release_uncreated_share();
        if self.loans.has_outgoing() {
            self.take_loan_step(out);
        } else if self.chunks.table().created() > 0 && !self.in_backoff() {
            self.order_release(Reason::Hibernate, out);
        }
    }

    fn order_swap_out(&mut self, out: &mut Vec<Action>) {
        if self.sleep.drops_kv() {
            self.give_up_cache();
            self.loans.set_lacks_room(self.kv.blocks().any_on_device());
            return;
        }
        let (evicted, too_many) = self.kv.make_host_room();
        self.orders.count_many(Reason::PrefixEvicted, evicted);
        self.loans.set_lacks_room(too_many > 0);
        if too_many > 0 || !self.kv.blocks().any_on_device() {
            return;
        }
        self.offloading().swap_out_next(out);
    }

    pub(super) fn on_swapped_out(&mut self, swaps: &[Swap], outcome: Outcome) {
        let done = matches!(outcome, Outcome::Done { .. });
        self.kv.finish_swap_out(swaps, done);
        self.sleep.on_swapped_out(done);
        if !done {
            self.transitions.on_backend_failed(&mut self.orders);
        }
    }

    /// Takes waking one action further.
    pub(super) fn wake_at_boundary(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if !self.chunks.is_unmapped() {
            // It was not asleep yet.
            self.sleep.on_awake();
            return;
        }
        if self.in_backoff() {
            return;
        }
        if let Some(transfer) = self.loans.first_outgoing() {
            return match transfer.kind {
                TransferKind::Lend => self.loans.refuse_first(),
                TransferKind::Return => self.take_loan_step(out),
            };
        }
        self.release_uncreated_share();
        self.loans.recreate_share(self.sizes.useful(), self.chunks.table().created());
        let first = self.sizes.initial_chunks(&self.base).saturating_sub(self.chunks.table().created());
        if first > 0 && self.loans.may_recreate(self.orders.boundaries()) {
            return self.transfers().recreate(first, out);
        }
        let layout = self.layout_search().starting(self.chunks.table().created());
        let whole = layout.as_ref().is_some_and(|layout| *layout == self.base);
        if let Some(layout) = layout.filter(|_| whole || !self.loans.awaits_loans()) {
            let next = self.initial_ownership(&layout);
            self.order_transaction(
                PendingTransaction { next, layout: Some(layout), reason: Reason::Wake },
                &[],
                out,
            );
        }
    }
}

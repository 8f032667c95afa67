//! Hibernation: an unused tenant gives up every chunk. Its KV goes to the host tier; its weights stay in host memory.
//! It wakes with all layers if they fit, else with moving ones, and its layers load during the first prefill.
//!
//! | suspending | waking |
//! |---|---|
//! | KV goes to the host tier; cache without space is dropped | chunks for the least memory are created |
//! | copies under way are dropped | loans are revoked by the negotiator |
//! | everything is unmapped in one transaction | everything is mapped in one transaction |
//! | the chunks are released | weights are loaded, embeddings first |

use alloc::vec::Vec;

use super::{MemoryManager, TransferKind};
use crate::action::Action;
use crate::event::Outcome;
use crate::kv::Swap;
use crate::orders::pending::Change;
use crate::reason::Reason;
use crate::step_model::Layout;

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
        if self.change.transition().is_some() {
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
            let change = Change {
                next: self.chunks.ownership().unmapped(),
                layout: Some(Layout::resident()),
                reason: Reason::Hibernate,
            };
            self.order_change(change, &[], out);
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
            self.change.on_backend_failed(&mut self.orders);
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
            return match transfer.claim {
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
            self.order_change(Change { next, layout: Some(layout), reason: Reason::Wake }, &[], out);
        }
    }
}

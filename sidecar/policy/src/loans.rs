//! One tenant's side of memory that passes between peers: its balance, its demand, and transfers under way.
//!
//! | file | what it holds |
//! |---|---|
//! | `share` | what of the share can be created, lent and released |
//! | `next_step` | the decision about the next action for peers and for the share |
//! | `reclaim`, `lendable_layers` | what is freed for it |
//! | `lendable` | what can be lent to a peer now |
//! | `restoration` | the layout that restores lent layers |
//! | `view`, `facts` | the questions of readers, and what decisions read of other parts |
//! | `transfers` | the actions, and their ends |
//! | `balance`, `demand`, `outgoing`, `recreation` | the state, each by itself |
//! | `audit` | what the check against the loan book reads |
//!
//! [`Loans`] knows chunks as numbers only. Values of other parts are arguments.

use alloc::vec::Vec;

pub(crate) mod audit;
mod balance;
mod demand;
mod facts;
pub(crate) mod lendable;
pub(crate) mod lendable_layers;
pub(crate) mod next_step;
mod outgoing;
pub(crate) mod reclaim;
mod recreation;
mod restoration;
pub(crate) mod share;
pub(crate) mod transfer;
pub(crate) mod transfers;
pub(crate) mod view;

use balance::Balance;
use demand::BorrowDemand;
pub(crate) use demand::{IDLE_BOUNDARIES, loan_sizes};
use outgoing::OutgoingTransfers;
use recreation::Recreation;
pub(crate) use recreation::{REGROW_BOUNDARIES, REGROW_PIECE_BYTES};
pub(crate) use transfer::OutgoingTransfer;
pub use transfer::{TransferKind, TransferResult};

use sluice_common::random::mix;

use crate::action::Earmark;
use crate::orders::pending::PendingActions;
use crate::reason::Reason;
use crate::revert::{Hysteresis, Pressure};

/// The loans of a tenant, and whether it takes part in lending now.
#[derive(Clone, Debug)]
pub(crate) struct Loans {
    balance: Balance,
    demand: BorrowDemand,
    outgoing: OutgoingTransfers,
    recreation: Recreation,
    /// Holds the time slice, or has work where there are none.
    active: bool,
    /// Requests wait or run, and there is an engine for them.
    busy: bool,
    /// Lent layers are not restored yet: their loans are being revoked.
    awaits_loans: bool,
    /// Not even the floor is free at first: peers hold it.
    awaits_floor: bool,
    /// A return, or another change that must happen, found no room: a request must be paused or preempted.
    lacks_room: bool,
    /// It found no room and no request is left to preempt: layers go for it, whatever their restoration costs.
    forces_reclaim: bool,
}

impl Loans {
    /// A tenant with this share, in chunks, and no loans.
    pub fn new(share: u32, hysteresis: Hysteresis) -> Loans {
        Loans {
            balance: Balance::new(share),
            demand: BorrowDemand::new(hysteresis),
            outgoing: OutgoingTransfers::default(),
            recreation: Recreation::new(),
            active: true,
            busy: false,
            awaits_loans: false,
            awaits_floor: false,
            lacks_room: false,
            forces_reclaim: false,
        }
    }

    /// Sets whether the tenant is active and has requests. A lender that becomes active waits for its loans.
    pub fn set_demand(&mut self, active: bool, busy: bool) {
        self.awaits_loans |= active && !self.active && self.balance.lent() > 0;
        (self.active, self.busy) = (active, busy);
        if !busy {
            self.demand.clear();
        }
    }

    /// Holds the time slice, or has work where there are none.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Requests wait or run, and there is an engine for them.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Lent layers wait while the loans are being revoked (`true`), or are restored into the memory at hand (`false`).
    pub fn set_awaits_loans(&mut self, waits: bool) {
        self.awaits_loans = waits;
    }

    /// The tenant wakes: what was lent is revoked first.
    pub fn await_loans(&mut self) {
        self.awaits_loans |= self.balance.lent() > 0;
    }

    /// Lent layers are not restored yet: their loans are being revoked.
    pub fn awaits_loans(&self) -> bool {
        self.awaits_loans
    }

    /// The tenant starts, and lacks this many chunks of its floor: if there are peers, it waits for them.
    pub fn await_floor(&mut self, missing: u32) {
        self.awaits_floor = self.demand.is_enabled() && missing > 0;
    }

    /// Not even the floor is free at first: peers hold it.
    pub fn awaits_floor(&self) -> bool {
        self.awaits_floor
    }

    /// Sets whether a change that must happen found no room.
    pub fn set_lacks_room(&mut self, lacks: bool) {
        self.lacks_room = lacks;
    }

    /// A return, or another change that must happen, found no room: a request must be paused or preempted.
    pub fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    /// No request is left to preempt: layers go, whatever their restoration costs.
    pub fn force_reclaim(&mut self) {
        self.forces_reclaim = true;
    }

    /// As [`Loans::force_reclaim`] said, until nothing is queued.
    pub fn forces_reclaim(&self) -> bool {
        self.forces_reclaim
    }

    /// The first transfer does not fit. A loan is refused; for a return, a request must go.
    pub fn refuse_first(&mut self) {
        if !self.outgoing.refuse_first_loan() && !self.outgoing.is_empty() {
            self.lacks_room = true;
        }
    }

    /// The first transfer is being made.
    pub fn on_send(&mut self) {
        self.outgoing.take_first();
    }

    /// Nothing is queued for a peer: layers go at the allowed stall again.
    pub fn on_nothing_queued(&mut self) {
        self.forces_reclaim = false;
    }

    /// A change does not fit: a request makes room if the change must happen; a loan is refused.
    pub fn on_no_room(&mut self, reason: Reason) {
        self.lacks_room |= reason.must_happen();
        if reason == Reason::Lend {
            self.refuse_first();
        }
    }

    /// The tenant falls asleep.
    pub fn on_suspend(&mut self) {
        self.lacks_room = false;
        self.demand.clear();
    }

    /// A boundary begins.
    pub fn on_boundary(&mut self) {
        self.demand.on_boundary();
    }
}

/// What the tenant asks of its peers.
impl Loans {
    /// Sets whether peers can be asked.
    pub fn set_can_borrow(&mut self, enabled: bool) {
        self.demand.set_enabled(enabled);
    }

    /// Peers can be asked and have not refused since the last boundary.
    pub fn may_ask(&self) -> bool {
        self.demand.is_enabled() && !self.demand.is_denied()
    }

    /// Asks peers for loans of these sizes, none if they cannot be asked.
    pub fn ask(&mut self, sizes: Vec<u32>) {
        self.demand.ask(sizes);
    }

    /// Chunks that the next step lacks and peers may have.
    pub fn borrow_request(&self) -> Option<u32> {
        self.demand.wanted()
    }

    /// The useful size of a loan where at most `max` chunks can be had: enough for as many requests of the step as the
    /// loan and `own` chunks of own layers cover, less what whole layers of `slab` chunks give in any case. 0 if it
    /// would not help.
    pub fn useful_loan_size(&self, max: u32, own: u32, slab: u32) -> u32 {
        let Some(step_chunks) = self.demand.largest_within(max.saturating_add(own)) else {
            return 0;
        };
        let layers = step_chunks.saturating_sub(max).div_ceil(slab);
        step_chunks.saturating_sub(own.min(layers.saturating_mul(slab)))
    }

    /// Peers have nothing: no demand until the next boundary.
    pub fn on_borrow_denied(&mut self) {
        self.demand.on_denied();
    }

    /// Borrowed chunks that no return is queued or under way for.
    pub fn unreturned(&self, pending: &PendingActions) -> u32 {
        self.balance.borrowed().saturating_sub(self.outgoing_chunks(pending, TransferKind::Return))
    }

    /// Of `left` borrowed chunks, those to return now. `in_use` says that the tenant needs them at this boundary;
    /// `open_requests` that requests have KV. Without requests that is all of them: a loan does not serve an unused
    /// cache.
    pub fn surplus(
        &mut self,
        left: u32,
        in_use: bool,
        open_requests: bool,
        pressure: impl FnOnce() -> Pressure,
    ) -> u32 {
        if left == 0 || in_use || self.demand.wanted().is_some() {
            self.demand.on_used();
            return 0;
        }
        // A loan for a request is in use before its first step is planned.
        if self.demand.count_idle(!self.busy && !open_requests) {
            return left;
        }
        self.demand.surplus(&pressure())
    }
}

/// Transfers to peers that are queued.
impl Loans {
    /// A transfer is queued.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The next transfer.
    pub fn first_outgoing(&self) -> Option<OutgoingTransfer> {
        self.outgoing.first()
    }

    /// Chunks of transfers of this kind, queued or under way.
    pub fn outgoing_chunks(&self, pending: &PendingActions, kind: TransferKind) -> u32 {
        self.outgoing.chunks_of(kind) + pending.lent_chunks(|_, of| of == kind)
    }

    /// Chunks of this return, queued or under way.
    pub fn debt_chunks(&self, pending: &PendingActions, earmark: Earmark) -> u32 {
        let under_way = pending.lent_chunks(|loan, kind| loan == earmark && kind == TransferKind::Return);
        self.outgoing.return_chunks(earmark) + under_way
    }

    /// Removes the loan of this name; returns whether it was queued.
    pub fn cancel_loan(&mut self, earmark: Earmark) -> bool {
        self.outgoing.cancel_loan(earmark)
    }

    /// Results of transfers since the last call.
    pub fn take_results(&mut self) -> Vec<TransferResult> {
        self.outgoing.take_results()
    }
}

impl Loans {
    /// No loan is out, queued or to be made good: no peer has memory of this tenant.
    pub fn nothing_lent(&self, pending: &PendingActions) -> bool {
        self.balance.lent() == 0
            && self.outgoing.is_empty()
            && self.recreation.chunks() == 0
            && pending.lent_chunks(|_, _| true) == 0
    }

    /// A number that changes with everything that decides.
    pub fn digest_word(&self) -> u64 {
        let flags = u64::from(self.balance.is_growing()) << 5
            | u64::from(self.forces_reclaim) << 4
            | u64::from(self.awaits_floor) << 3
            | u64::from(self.active) << 2
            | u64::from(self.awaits_loans) << 1
            | u64::from(self.lacks_room);
        let words = [
            self.balance.share(),
            self.balance.borrowed(),
            self.balance.lent(),
            self.recreation.chunks(),
            self.outgoing.len() as u32,
        ];
        words.into_iter().fold(flags, |word, next| mix(word ^ u64::from(next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words computed outside this crate by the finaliser of SplitMix64: journals of earlier versions have them.
    #[test]
    fn digest_word_is_that_of_earlier_journals() {
        let mut loans = Loans::new(40, Hysteresis::new(1, 0));
        assert_eq!(loans.digest_word(), 0x3c7b_d9b5_c1fa_56bc);
        loans.balance.assign(60);
        loans.balance.on_borrowed(5);
        loans.balance.on_lent(7);
        loans.recreation.add(3);
        loans.force_reclaim();
        loans.set_can_borrow(true);
        loans.await_floor(1);
        loans.await_loans();
        loans.set_lacks_room(true);
        for nonce in [1, 1] {
            let peer = crate::peers::Peer { index: 1, instance: 1 };
            let earmark = crate::action::Earmark { peer, nonce: crate::peers::loans::Nonce(nonce) };
            loans.outgoing.push(OutgoingTransfer { earmark, chunks: 1, kind: TransferKind::Lend });
        }
        assert_eq!(loans.digest_word(), 0x863d_d705_c789_d474);
    }

    #[test]
    fn active_lender_waits_for_its_loans() {
        let mut loans = Loans::new(40, Hysteresis::new(1, 0));
        loans.set_demand(false, false);
        loans.balance.on_lent(3);
        loans.set_demand(true, false);
        assert!(loans.awaits_loans());
        loans.set_awaits_loans(false);
        loans.set_demand(true, false);
        assert!(!loans.awaits_loans(), "it was active before");
    }
}

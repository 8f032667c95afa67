//! One tenant's side of memory that passes between peers: its balance, its demand, and transfers under way.
//!
//! The parts know chunks as numbers only. Which chunks are transferred, and what must be freed for them, the memory
//! manager decides.

mod balance;
mod demand;
mod outgoing;
mod recreation;
pub(crate) mod transfer;

pub(crate) use balance::Balance;
pub(crate) use demand::{BorrowDemand, IDLE_BOUNDARIES};
pub(crate) use outgoing::OutgoingTransfers;
pub(crate) use recreation::{REGROW_BOUNDARIES, Recreation};
pub(crate) use transfer::OutgoingTransfer;
pub use transfer::{TransferKind, TransferResult};

use sluice_common::random::mix;

use crate::revert::Hysteresis;

/// The loans of a tenant, and whether it takes part in lending now.
#[derive(Clone, Debug)]
pub(crate) struct Loans {
    pub balance: Balance,
    pub demand: BorrowDemand,
    pub outgoing: OutgoingTransfers,
    pub recreation: Recreation,
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
    /// It found no space and no request is left to preempt: layers go for it, whatever their restoration costs.
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

    /// The tenant becomes active or inactive. A lender that becomes active waits for its loans.
    pub fn set_active(&mut self, active: bool) {
        self.awaits_loans |= active && !self.active && self.balance.lent() > 0;
        self.active = active;
    }

    pub fn is_active(&self) -> bool {
        self.active
    }

    pub fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    pub fn is_busy(&self) -> bool {
        self.busy
    }

    pub fn set_awaits_loans(&mut self, waits: bool) {
        self.awaits_loans = waits;
    }

    /// What was lent is revoked first.
    pub fn await_loans(&mut self) {
        self.awaits_loans |= self.balance.lent() > 0;
    }

    pub fn awaits_loans(&self) -> bool {
        self.awaits_loans
    }

    pub fn set_awaits_floor(&mut self, waits: bool) {
        self.awaits_floor = waits;
    }

    pub fn awaits_floor(&self) -> bool {
        self.awaits_floor
    }

    pub fn set_lacks_room(&mut self, lacks: bool) {
        self.lacks_room = lacks;
    }

    pub fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    pub fn set_forces_reclaim(&mut self, forces: bool) {
        self.forces_reclaim = forces;
    }

    pub fn forces_reclaim(&self) -> bool {
        self.forces_reclaim
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
        loans.set_forces_reclaim(true);
        loans.set_awaits_floor(true);
        loans.await_loans();
        loans.set_lacks_room(true);
        for nonce in [1, 1] {
            let peer = crate::peers::Peer { index: 1, instance: 1 };
            let earmark = crate::action::Earmark { peer, nonce: crate::peers::loans::Nonce(nonce) };
            loans.outgoing.push(OutgoingTransfer { earmark, chunks: 1, claim: TransferKind::Lend });
        }
        assert_eq!(loans.digest_word(), 0x863d_d705_c789_d474);
    }

    #[test]
    fn active_lender_waits_for_its_loans() {
        let mut loans = Loans::new(40, Hysteresis::new(1, 0));
        loans.set_active(false);
        loans.balance.on_lent(3);
        loans.set_active(true);
        assert!(loans.awaits_loans());
        loans.set_awaits_loans(false);
        loans.set_active(true);
        assert!(!loans.awaits_loans(), "it was active before");
    }
}

//! What a [`crate::loan_negotiator::LoanNegotiator`] changes: transfers to and from peers.

use alloc::vec::Vec;

use super::{MemoryManager, SleepState, TransferKind, TransferResult};
use crate::action::{Action, Earmark, Work};
use crate::loans::OutgoingTransfer;
use crate::orders::pending::Pending;
use crate::peers::Peer;
use crate::reason::Reason;
use crate::revert::Pressure;

/// The loans of a tenant, for the negotiator that trades with peers.
#[derive(Debug)]
pub struct LoanControl<'a> {
    pub(super) manager: &'a mut MemoryManager,
}

impl MemoryManager {
    /// Returns the loans, for the negotiator that trades with peers.
    pub fn loans_mut(&mut self) -> LoanControl<'_> {
        LoanControl { manager: self }
    }
}

impl LoanControl<'_> {
    /// Sets whether peers can be asked.
    pub fn set_can_borrow(&mut self, traded: bool) {
        self.manager.loans.demand.set_enabled(traded);
    }

    /// Peers have nothing: the policy's next step is tried, until the next boundary.
    pub fn on_borrow_denied(&mut self) {
        self.manager.loans.demand.on_denied();
    }

    /// Counts a decision about a peer.
    pub(crate) fn record_shortfall(&mut self, reason: Reason) {
        self.manager.orders.count(reason);
    }

    /// Stops loans to a peer that has exited. Returns the chunks of all that were not made, with those under way.
    pub fn forget_loans(&mut self, peer: Peer) -> u32 {
        let waiting = self.manager.loans.outgoing.forget_loans_to(peer);
        let made = self
            .manager
            .outgoing_chunks(|earmark, claim| earmark.peer == peer && claim == TransferKind::Lend);
        waiting + made
    }

    /// Borrowed chunks that were not needed for a while, after own layers were restored. Without requests that is all
    /// of them: a loan does not serve an unused cache.
    pub fn return_unused_loan(&mut self) -> u32 {
        let left = self
            .manager
            .loans
            .balance
            .borrowed()
            .saturating_sub(self.manager.earmarked_chunks(TransferKind::Return));
        if self.manager.sleep.state() == SleepState::Asleep {
            return left;
        }
        let away = self.manager.weights.layout().alpha() > self.manager.base.alpha();
        if left == 0
            || away
            || self.manager.change.transition().is_some()
            || self.manager.loans.demand.wanted().is_some()
        {
            self.manager.loans.demand.on_used();
            return 0;
        }
        // A loan for a request is in use before its first step is planned.
        let idle = !self.manager.loans.is_busy() && self.manager.kv.open_requests() == 0;
        if self.manager.loans.demand.count_idle(idle) {
            return left;
        }
        let bytes = |chunks: u32| u64::from(chunks) * self.manager.geometry.chunk_bytes;
        let used = self
            .manager
            .kv
            .chunk_pool()
            .used_layer_blocks()
            .saturating_sub(self.manager.kv.evictable_layer_blocks());
        let pressure = Pressure {
            spare_bytes: bytes(self.manager.chunks.free_count() + self.manager.idle_kv_chunks()),
            used_bytes: bytes(used.div_ceil(self.manager.sizes.layer_blocks_per_chunk)),
            layer_bytes: self.manager.geometry.chunk_bytes,
            alpha: left.min(u32::from(u16::MAX)) as u16,
        };
        self.manager.loans.demand.surplus(&pressure)
    }

    /// Lent layers wait while the loans are being revoked (`true`), or are restored into the memory at hand (`false`).
    pub fn set_awaits_loans(&mut self, patient: bool) {
        self.manager.loans.set_awaits_loans(patient);
    }

    /// The return still does not fit and no request is left to preempt: layers go for it.
    pub fn force_reclaim(&mut self) {
        self.manager.loans.set_forces_reclaim(true);
    }

    /// Results of transfers since the last call.
    pub fn take_transfer_results(&mut self) -> Vec<TransferResult> {
        self.manager.loans.outgoing.take_results()
    }

    /// Queues a transfer to a peer. Its result comes by [`LoanControl::take_transfer_results`].
    ///
    /// # Panics
    /// If a loan would take the tenant below its floor, or a return is larger than what was borrowed: the caller has
    /// checked.
    pub fn queue_transfer(&mut self, earmark: Earmark, chunks: u32, claim: TransferKind) {
        let promised = self.manager.earmarked_chunks(claim) + chunks;
        match claim {
            TransferKind::Lend => {
                let left = (self.manager.loans.balance.share() - self.manager.loans.balance.lent())
                    .checked_sub(promised);
                assert!(
                    left.is_some_and(|left| left >= self.manager.loans().unlent_floor_chunks()),
                    "a tenant keeps its floor"
                );
            }
            TransferKind::Return => {
                assert!(promised <= self.manager.loans.balance.borrowed(), "a debt was borrowed")
            }
        }
        self.manager.loans.outgoing.push(OutgoingTransfer { earmark, chunks, claim });
    }

    /// The borrower no longer waits for this loan. Returns false if the loan can no longer be cancelled: its result
    /// comes.
    pub fn cancel_transfer(&mut self, earmark: Earmark) -> bool {
        self.manager.loans.outgoing.cancel_loan(earmark)
    }

    /// A peer has earmarked chunks for this tenant, as a loan or as a return: they are created here.
    ///
    /// # Panics
    /// If more is returned than was lent.
    pub fn accept(&mut self, earmark: Earmark, chunks: u32, claim: TransferKind, out: &mut Vec<Action>) {
        assert!(
            claim == TransferKind::Lend || chunks <= self.manager.loans.balance.lent(),
            "what comes back was lent"
        );
        let chunks = self.manager.fresh_chunks(chunks);
        let work = Work::Accept { chunks: chunks.clone(), earmark };
        let reason = if claim == TransferKind::Lend { Reason::Borrow } else { Reason::Wake };
        self.manager.orders.order(work, reason, Pending::Accept(chunks, earmark, claim), out);
    }

    /// A borrower exited, and its chunks are the device's: they may be created again.
    ///
    /// # Panics
    /// If fewer were lent.
    pub fn recover_share(&mut self, chunks: u32) {
        self.manager.loans.balance.on_lent_returned(chunks);
        self.manager.loans.recreation.add(chunks);
    }

    /// Asks the device for the floor once more.
    pub fn claim_floor(&mut self, out: &mut Vec<Action>) {
        if self.manager.loans.awaits_floor() && !self.manager.orders.pending.blocking() {
            let missing = self.manager.missing_floor() as usize;
            let chunks = self.manager.chunks.table().uncreated().take(missing).collect();
            self.manager.create(chunks, out);
        }
    }
}

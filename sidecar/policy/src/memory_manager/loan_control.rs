//! What a [`crate::loan_negotiator::LoanNegotiator`] changes: transfers to and from peers.

use alloc::vec::Vec;

use super::{MemoryManager, SleepState, TransferKind, TransferResult};
use crate::action::{Action, Earmark};
use crate::loans::OutgoingTransfer;
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
        self.manager.loans.set_can_borrow(traded);
    }

    /// Peers have nothing: the policy's next step is tried, until the next boundary.
    pub fn on_borrow_denied(&mut self) {
        self.manager.loans.on_borrow_denied();
    }

    /// Counts a decision about a peer.
    pub(crate) fn record_shortfall(&mut self, reason: Reason) {
        self.manager.orders.count(reason);
    }

    /// Stops loans to a peer that has exited. Returns the chunks of all that were not made, with those under way.
    pub fn forget_loans(&mut self, peer: Peer) -> u32 {
        self.manager.loans.forget_loans_to(&self.manager.orders.pending, peer)
    }

    /// Borrowed chunks that were not needed for a while, after own layers were restored. Without requests that is all
    /// of them: a loan does not serve an unused cache.
    pub fn return_unused_loan(&mut self) -> u32 {
        let manager = &mut *self.manager;
        let left = manager.loans.unreturned(&manager.orders.pending);
        if manager.sleep.state() == SleepState::Asleep {
            return left;
        }
        let away = manager.weights.layout().alpha() > manager.base.alpha();
        let in_use = away || manager.change.transition().is_some();
        let open_requests = manager.kv.open_requests() > 0;
        let (kv, sizes, chunk_bytes) = (&manager.kv, &manager.sizes, manager.geometry.chunk_bytes);
        let free = manager.chunks.free_count();
        manager.loans.surplus(left, in_use, open_requests, || {
            let used = kv.chunk_pool().used_layer_blocks().saturating_sub(kv.evictable_layer_blocks());
            Pressure {
                spare_bytes: u64::from(free + kv.idle_chunks_above(sizes.kv_guaranteed)) * chunk_bytes,
                used_bytes: u64::from(used.div_ceil(sizes.layer_blocks_per_chunk)) * chunk_bytes,
                layer_bytes: chunk_bytes,
                alpha: left.min(u32::from(u16::MAX)) as u16,
            }
        })
    }

    /// Lent layers wait while the loans are being revoked (`true`), or are restored into the memory at hand (`false`).
    pub fn set_awaits_loans(&mut self, patient: bool) {
        self.manager.loans.set_awaits_loans(patient);
    }

    /// The return still does not fit and no request is left to preempt: layers go for it.
    pub fn force_reclaim(&mut self) {
        self.manager.loans.force_reclaim();
    }

    /// Results of transfers since the last call.
    pub fn take_transfer_results(&mut self) -> Vec<TransferResult> {
        self.manager.loans.take_results()
    }

    /// Queues a transfer to a peer. Its result comes by [`LoanControl::take_transfer_results`].
    ///
    /// # Panics
    /// If a loan would take the tenant below its floor, or a return is larger than what was borrowed: the caller has
    /// checked.
    pub fn queue_transfer(&mut self, earmark: Earmark, chunks: u32, claim: TransferKind) {
        let floor = self.manager.share_limits().floor;
        let transfer = OutgoingTransfer { earmark, chunks, claim };
        self.manager.loans.queue(transfer, &self.manager.orders.pending, floor);
    }

    /// The borrower no longer waits for this loan. Returns false if the loan can no longer be cancelled: its result
    /// comes.
    pub fn cancel_transfer(&mut self, earmark: Earmark) -> bool {
        self.manager.loans.cancel_loan(earmark)
    }

    /// A peer has earmarked chunks for this tenant, as a loan or as a return: they are created here.
    ///
    /// # Panics
    /// If more is returned than was lent.
    pub fn accept(&mut self, earmark: Earmark, chunks: u32, claim: TransferKind, out: &mut Vec<Action>) {
        self.manager.transfers().accept(earmark, chunks, claim, out);
    }

    /// A borrower exited, and its chunks are the device's: they may be created again.
    ///
    /// # Panics
    /// If fewer were lent.
    pub fn recover_share(&mut self, chunks: u32) {
        self.manager.loans.recover_share(chunks);
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

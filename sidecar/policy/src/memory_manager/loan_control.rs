//! What a [`crate::loan_negotiator::LoanNegotiator`] asks of the tenant and changes: transfers to and from peers.

use alloc::vec::Vec;

use super::parts::pressure;
use super::{MemoryManager, SleepState, TransferKind, TransferResult};
use crate::action::{Action, Earmark};
use crate::loan_negotiator::{LoanControl, LoanState};
use crate::loans::OutgoingTransfer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;
use crate::reason::Reason;

/// The loans of a tenant. A negotiator changes them by [`LoanControl`]. It holds the memory manager, of which it asks
/// views, and orders chunks for the floor as loading does; the memory manager never calls it.
#[derive(Debug)]
pub struct LoansMut<'a> {
    manager: &'a mut MemoryManager,
}

impl MemoryManager {
    /// Returns the loans, for the negotiator that trades with peers.
    pub fn loans_mut(&mut self) -> LoansMut<'_> {
        LoansMut { manager: self }
    }
}

impl LoansMut<'_> {
    /// Sets whether peers can be asked.
    pub fn set_can_borrow(&mut self, can_borrow: bool) {
        self.manager.loans.set_can_borrow(can_borrow);
    }

    /// The return still does not fit and no request is left to preempt: layers go for it.
    pub fn force_reclaim(&mut self) {
        self.manager.loans.force_reclaim();
    }

    /// Asks the device for the floor once more.
    pub fn claim_floor(&mut self, out: &mut Vec<Action>) {
        if self.manager.loans.awaits_floor() && !self.manager.orders.pending().blocking() {
            let missing = self.manager.loans().missing_floor() as usize;
            let chunks = self.manager.chunks.table().uncreated().take(missing).collect();
            self.manager.create(chunks, out);
        }
    }
}

impl LoanControl for LoansMut<'_> {
    fn state(&self) -> LoanState {
        let (status, loans) = (self.manager.status(), self.manager.loans());
        LoanState {
            share: loans.share_chunks(),
            floor: loans.unlent_floor_chunks(),
            expected: loans.expected_chunks(),
            over_lent: loans.over_lent_chunks(),
            is_active: loans.active(),
            is_whole: status.is_loaded() && status.absent_layers() == 0,
            wants_layers: loans.wants_layers(),
            is_blocked: status.is_blocked(),
            next_use: self.manager.params().next_use(),
        }
    }

    fn borrow_request(&self) -> Option<u32> {
        self.manager.loans().borrow_request()
    }

    fn useful_loan_size(&self, max: u32) -> u32 {
        self.manager.loans().useful_loan_size(max)
    }

    fn lendable(&self) -> Result<u32, LoanDenied> {
        self.manager.loans().lendable()
    }

    fn debt_chunks(&self, earmark: Earmark) -> u32 {
        self.manager.loans.debt_chunks(self.manager.orders.pending(), earmark)
    }

    fn is_lending(&self, nonce: Nonce) -> bool {
        let is_loan = |earmark: Earmark, kind| earmark.nonce == nonce && kind == TransferKind::Lend;
        self.manager.orders.pending().lent_chunks(is_loan) > 0
    }

    fn count(&mut self, reason: Reason) {
        self.manager.orders.count(reason);
    }

    fn on_borrow_denied(&mut self) {
        self.manager.loans.on_borrow_denied();
    }

    fn set_awaits_loans(&mut self, waits: bool) {
        self.manager.loans.set_awaits_loans(waits);
    }

    fn queue_transfer(&mut self, earmark: Earmark, chunks: u32, kind: TransferKind) {
        let floor = self.manager.loans().limits().floor;
        let transfer = OutgoingTransfer { earmark, chunks, kind };
        self.manager.loans.queue(transfer, self.manager.orders.pending(), floor);
    }

    fn cancel_loan(&mut self, earmark: Earmark) -> bool {
        self.manager.loans.cancel_loan(earmark)
    }

    fn accept(&mut self, earmark: Earmark, chunks: u32, kind: TransferKind, out: &mut Vec<Action>) {
        self.manager.transfers().accept(earmark, chunks, kind, out);
    }

    fn take_transfer_results(&mut self) -> Vec<TransferResult> {
        self.manager.loans.take_results()
    }

    fn recover_share(&mut self, chunks: u32) {
        self.manager.loans.recover_share(chunks);
    }

    fn unused_loan(&mut self) -> u32 {
        let manager = &mut *self.manager;
        let left = manager.loans.unreturned(manager.orders.pending());
        if manager.sleep.state() == SleepState::Asleep {
            return left;
        }
        let away = manager.layout_search().is_remapped();
        let in_use = away || manager.transitions.current().is_some();
        let open_requests = manager.kv.requests().count() > 0;
        let MemoryManager { loans, kv, chunks, sizes, geometry, .. } = manager;
        loans.surplus(left, in_use, open_requests, || {
            let borrowed = left.min(u32::from(u16::MAX)) as u16;
            pressure((kv, chunks), (sizes, geometry), (borrowed, 1))
        })
    }
}

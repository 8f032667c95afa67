//! Handles the results of the memory manager's transfers.

use super::{Arrival, LoanControl, LoanNegotiator, PeerCommand};
use crate::action::Earmark;
use crate::ids::Nanos;
use crate::loans::{TransferKind, TransferResult};
use crate::peers::loan_denied::LoanDenied;

impl LoanNegotiator {
    pub(super) fn process_transfer_results(&mut self, now: Nanos, loans: &mut dyn LoanControl) {
        for result in loans.take_transfer_results() {
            match result {
                TransferResult::Granted { earmark, chunks, kind: TransferKind::Lend } => {
                    self.on_lent(earmark, chunks, loans)
                }
                TransferResult::Granted { earmark, chunks, kind: TransferKind::Return } => {
                    self.on_repaid(earmark, chunks)
                }
                TransferResult::Refused { earmark, kind: TransferKind::Lend, .. } => {
                    self.on_declined(earmark, loans)
                }
                TransferResult::Refused { earmark, chunks, kind: TransferKind::Return } => {
                    // It is still owed.
                    loans.queue_transfer(earmark, chunks, TransferKind::Return);
                }
                TransferResult::Accepted { earmark, chunks } => self.on_accepted(earmark, chunks, loans),
                TransferResult::NotBacked { earmark, chunks } => {
                    self.on_not_backed(now, earmark, chunks, loans)
                }
                TransferResult::NotAccepted { earmark } => self.on_not_accepted(now, earmark, loans),
            }
        }
        self.book.set_share(loans.state().share);
    }

    fn on_lent(&mut self, earmark: Earmark, chunks: u32, loans: &mut dyn LoanControl) {
        let Earmark { peer, nonce } = earmark;
        if !self.lends(earmark) {
            // The ledger returned it, or the borrower exited: no tenant holds the bytes.
            loans.recover_share(chunks);
            return;
        }
        self.commands.push(PeerCommand::Answer { peer, nonce, chunks, ttl_ns: self.policy.ttl_ns });
    }

    fn on_declined(&mut self, earmark: Earmark, loans: &mut dyn LoanControl) {
        // Nothing of it was transferred.
        let _ = self.book.on_taken_back(earmark.nonce);
        self.refuse(earmark, LoanDenied::Busy, loans);
    }

    fn on_repaid(&mut self, earmark: Earmark, chunks: u32) {
        // A loan that was revoked before it was accepted is not in the book.
        let to = self.book.on_gave_back(earmark.nonce, chunks).map_or(Some(earmark.peer), |gone| gone.to);
        if let Some(peer) = to {
            self.commands.push(PeerCommand::Return { peer, nonce: earmark.nonce, chunks });
        }
    }

    fn on_accepted(&mut self, earmark: Earmark, chunks: u32, loans: &mut dyn LoanControl) {
        let Some(arrival) = self.on_arrived(earmark) else { return };
        let Earmark { peer, nonce } = earmark;
        let entered = match arrival.kind {
            TransferKind::Lend => self.book.granted(nonce, peer, chunks, arrival.expires),
            TransferKind::Return => self.book.returned(nonce, peer, chunks),
        };
        if entered.is_err() && arrival.kind == TransferKind::Lend {
            // Its lender revoked it, or exited, during the transfer.
            loans.queue_transfer(earmark, chunks, TransferKind::Return);
        }
        self.loans_accepted += u64::from(entered.is_ok() && arrival.kind == TransferKind::Lend);
    }

    /// Handles accepted bytes without memory: a loan is returned at once and no peer is asked for a while; a repayment
    /// counts, and its chunks are created later.
    fn on_not_backed(&mut self, now: Nanos, earmark: Earmark, chunks: u32, loans: &mut dyn LoanControl) {
        let Some(arrival) = self.on_arrived(earmark) else { return };
        let Earmark { peer, nonce } = earmark;
        match arrival.kind {
            TransferKind::Lend => {
                // Its lender may have revoked it, or exited, during the transfer.
                let _ = self.book.timed_out(nonce);
                loans.queue_transfer(earmark, chunks, TransferKind::Return);
                self.next_ask_at = now.plus(self.policy.retry_ns);
            }
            TransferKind::Return => {
                let _ = self.book.returned(nonce, peer, chunks);
            }
        }
    }

    /// Removes the arrival that was being accepted.
    fn on_arrived(&mut self, earmark: Earmark) -> Option<Arrival> {
        let at = self.arriving.iter().position(|a| a.ordered && a.earmark == earmark)?;
        Some(self.arriving.remove(at))
    }

    /// Handles an invalid earmark. A loan is dropped and no peer is asked for a while, because its lender might repeat
    /// invalid earmarks. A repayment is accepted when the ledger reports it again; if its borrower exited, its bytes
    /// belong to no tenant.
    fn on_not_accepted(&mut self, now: Nanos, earmark: Earmark, loans: &mut dyn LoanControl) {
        let Some(arrival) = self.on_arrived(earmark) else { return };
        let Earmark { peer, nonce } = earmark;
        if arrival.kind == TransferKind::Lend {
            self.next_ask_at = now.plus(self.policy.retry_ns);
            if self.book.timed_out(nonce).is_ok() {
                self.commands.push(PeerCommand::Withdraw { peer, nonce });
            }
        }
        if arrival.kind == TransferKind::Return && !self.lends(earmark) {
            loans.recover_share(arrival.chunks);
        }
    }

    /// Whether the loan is in the book.
    pub(super) fn lends(&self, Earmark { peer, nonce }: Earmark) -> bool {
        self.book.loans_out().iter().any(|given| given.nonce == nonce && given.peer == peer)
    }
}

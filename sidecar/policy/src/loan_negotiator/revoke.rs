//! Revokes loans: notifies each borrower, repeats it while the need lasts, and waits for each loan once.

use alloc::vec::Vec;

use super::pending_revocation::{ASK_BACKOFF_MAX_NS, PendingRevocation};
use super::{LoanControl, LoanNegotiator, PeerCommand};
use crate::ids::Nanos;
use crate::peers::loans::Nonce;

impl LoanNegotiator {
    /// Revokes the tenant's loans if it has work and lacks layers, or if KV is short. It waits for a loan only within
    /// the bound, counted from the first notification: otherwise a need that recurs with every time slice would wait
    /// again each time for a loan that is never returned.
    pub(super) fn revoke_loans(&mut self, now: Nanos, loans: &mut dyn LoanControl) {
        let out: Vec<_> = self.book.loans_out().iter().map(|given| (given.nonce, given.chunks)).collect();
        self.pending_revocations.retain(|pending| out.iter().any(|(nonce, _)| *nonce == pending.nonce));
        self.awaits_loan_return = false;
        if loans.state().wants_layers || loans.borrow_request().is_some() {
            out.into_iter().for_each(|(nonce, chunks)| self.revoke(now, nonce, chunks));
            let bound_ns = self.policy.revoke_bound_ns;
            self.awaits_loan_return =
                self.pending_revocations.iter().any(|pending| now.since(pending.since) < bound_ns);
        } else {
            self.revoke_over_lent(now, loans.state().over_lent);
        }
        loans.set_awaits_loans(self.awaits_loan_return);
    }

    /// Revokes the newest loans if the share fell or the floor rose so that too much is lent.
    fn revoke_over_lent(&mut self, now: Nanos, mut chunks: u32) {
        let newest_first: Vec<_> = self.book.loans_out().iter().rev().map(|g| (g.nonce, g.chunks)).collect();
        for (nonce, given) in newest_first {
            if chunks > 0 {
                self.revoke(now, nonce, chunks.min(given));
            }
            chunks = chunks.saturating_sub(given);
        }
    }

    /// Notifies a borrower of a revocation, unless it was notified a short time ago. Messages and answers can be lost,
    /// so the notification is repeated within the bound, then at increasing intervals.
    fn revoke(&mut self, now: Nanos, nonce: Nonce, chunks: u32) {
        let is_revoked =
            self.book.loans_out().iter().any(|given| given.nonce == nonce && given.revoked >= chunks);
        let pending = self.pending_revocation(now, nonce);
        if is_revoked && now < pending.retry_at {
            return;
        }
        pending.retry_at = now.plus(pending.pause_ns);
        pending.pause_ns = pending.pause_ns.saturating_mul(2).min(ASK_BACKOFF_MAX_NS);
        let order = self.book.revoke(nonce, chunks).expect("a grant of the book is known to it");
        self.commands.push(PeerCommand::Revoke { peer: order.peer, nonce, chunks: order.chunks });
    }

    fn pending_revocation(&mut self, now: Nanos, nonce: Nonce) -> &mut PendingRevocation {
        let known = self.pending_revocations.iter().position(|pending| pending.nonce == nonce);
        let at = known.unwrap_or_else(|| {
            let pause_ns = (self.policy.revoke_bound_ns / 2).max(1);
            self.pending_revocations.push(PendingRevocation { nonce, since: now, retry_at: now, pause_ns });
            self.pending_revocations.len() - 1
        });
        &mut self.pending_revocations[at]
    }
}

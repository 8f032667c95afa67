//! Taking back what was lent: told to each borrower, told again while it is needed, and waited for once.

use alloc::vec::Vec;

use super::{LoanNegotiator, PeerCommand};
use crate::ids::Nanos;
use crate::memory_manager::MemoryManager;
use crate::peers::loans::Nonce;

/// A borrower is told again at the latest after so long, nanoseconds.
pub(super) const ASK_BACKOFF_MAX_NS: u64 = 5_000_000_000;

/// A loan that is wanted back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingRevocation {
    nonce: Nonce,
    /// When its borrower was first told.
    since: Nanos,
    /// It is told again then.
    retry_at: Nanos,
    /// And after that so much later, nanoseconds: twice as long each time.
    pause_ns: u64,
}

impl LoanNegotiator {
    /// A tenant with work whose layers are away, or whose KV is short, takes back what it lent. It waits for a loan no longer
    /// than the bound, counted from the first word about it: a need that comes and goes with turns and steps would else wait
    /// anew each time for what never comes.
    pub(super) fn recall(&mut self, now: Nanos, manager: &mut MemoryManager) {
        let out: Vec<_> = self.book.loans_out().iter().map(|given| (given.nonce, given.chunks)).collect();
        self.pending_revocations.retain(|recalled| out.iter().any(|(nonce, _)| *nonce == recalled.nonce));
        self.awaits_loan_return = false;
        if manager.wants_layers() || manager.borrow_request().is_some() {
            out.into_iter().for_each(|(nonce, chunks)| self.revoke(now, nonce, chunks));
            let bound_ns = self.policy.revoke_bound_ns;
            self.awaits_loan_return =
                self.pending_revocations.iter().any(|recalled| now.since(recalled.since) < bound_ns);
        } else {
            self.recall_overlent(now, manager.over_lent_chunks());
        }
        manager.set_awaits_loans(self.awaits_loan_return);
    }

    /// The share fell, or the floor rose, and neighbours have what the tenant needs: the newest loans come back.
    fn recall_overlent(&mut self, now: Nanos, mut chunks: u32) {
        let newest_first: Vec<_> = self.book.loans_out().iter().rev().map(|g| (g.nonce, g.chunks)).collect();
        for (nonce, given) in newest_first {
            if chunks > 0 {
                self.revoke(now, nonce, chunks.min(given));
            }
            chunks = chunks.saturating_sub(given);
        }
    }

    /// Tells a borrower that it is to give back all of a loan, unless it was told a moment ago. Letters get lost, and so do answers: it is told again within the
    /// bound, and then less and less often.
    fn revoke(&mut self, now: Nanos, nonce: Nonce, chunks: u32) {
        let told = self.book.loans_out().iter().any(|given| given.nonce == nonce && given.revoked >= chunks);
        let recalled = self.pending_revocation(now, nonce);
        if told && now < recalled.retry_at {
            return;
        }
        recalled.retry_at = now.plus(recalled.pause_ns);
        recalled.pause_ns = recalled.pause_ns.saturating_mul(2).min(ASK_BACKOFF_MAX_NS);
        let recall = self.book.revoke(nonce, chunks).expect("a grant of the book is known to it");
        self.commands.push(PeerCommand::Revoke { peer: recall.peer, nonce, chunks: recall.chunks });
    }

    fn pending_revocation(&mut self, now: Nanos, nonce: Nonce) -> &mut PendingRevocation {
        let known = self.pending_revocations.iter().position(|recalled| recalled.nonce == nonce);
        let at = known.unwrap_or_else(|| {
            let pause_ns = (self.policy.revoke_bound_ns / 2).max(1);
            self.pending_revocations.push(PendingRevocation { nonce, since: now, retry_at: now, pause_ns });
            self.pending_revocations.len() - 1
        });
        &mut self.pending_revocations[at]
    }
}

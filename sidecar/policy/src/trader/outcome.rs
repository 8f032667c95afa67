//! What became of transfers that the brain was told to make.

use super::{Arrival, Letter, Trader};
use crate::action::Earmark;
use crate::brain::{Brain, Claim, Traded};
use crate::ids::Nanos;
use crate::neighbours::refusal::Refusal;

impl Trader {
    pub(super) fn take_outcomes(&mut self, now: Nanos, brain: &mut Brain) {
        for traded in brain.take_traded() {
            match traded {
                Traded::Given { earmark, chunks, claim: Claim::Loan } => self.lent(earmark, chunks, brain),
                Traded::Given { earmark, chunks, claim: Claim::Debt } => self.repaid(earmark, chunks),
                Traded::Refused { earmark, claim: Claim::Loan, .. } => self.declined(earmark, brain),
                Traded::Refused { earmark, chunks, claim: Claim::Debt } => {
                    // It is owed as before.
                    brain.give(earmark, chunks, Claim::Debt);
                }
                Traded::Taken { earmark, chunks } => self.taken(earmark, chunks, brain),
                Traded::Unmade { earmark, chunks } => self.unmade(now, earmark, chunks, brain),
                Traded::NotTaken { earmark } => self.not_taken(now, earmark, brain),
            }
        }
        self.book.set_share(brain.share_chunks());
    }

    fn lent(&mut self, earmark: Earmark, chunks: u32, brain: &mut Brain) {
        let Earmark { peer, nonce } = earmark;
        if !self.lends(earmark) {
            // The ledger gave it back meanwhile, or the borrower died: nobody has the bytes.
            brain.regain(chunks);
            return;
        }
        self.letters.push(Letter::Answer { peer, nonce, chunks, ttl_ns: self.terms.ttl_ns });
    }

    fn declined(&mut self, earmark: Earmark, brain: &mut Brain) {
        // Nothing of it had left.
        let _ = self.book.took_back(earmark.nonce);
        self.refuse(earmark, Refusal::Busy, brain);
    }

    fn repaid(&mut self, earmark: Earmark, chunks: u32) {
        // A loan that was revoked before it was accepted never came into the book.
        let to = self.book.gave_back(earmark.nonce, chunks).map_or(Some(earmark.peer), |gone| gone.to);
        if let Some(peer) = to {
            self.letters.push(Letter::Return { peer, nonce: earmark.nonce, chunks });
        }
    }

    fn taken(&mut self, earmark: Earmark, chunks: u32, brain: &mut Brain) {
        let Some(arrival) = self.arrived(earmark) else { return };
        let Earmark { peer, nonce } = earmark;
        let entered = match arrival.claim {
            Claim::Loan => self.book.granted(nonce, peer, chunks, arrival.expires),
            Claim::Debt => self.book.returned(nonce, peer, chunks),
        };
        if entered.is_err() && arrival.claim == Claim::Loan {
            // Its lender wanted it back, or died, while it came.
            brain.give(earmark, chunks, Claim::Debt);
        }
        self.loans_taken += u64::from(entered.is_ok() && arrival.claim == Claim::Loan);
    }

    /// Bytes without memory: a loan goes back at once and nobody is asked for a while, a debt is paid and its chunks are
    /// created later.
    fn unmade(&mut self, now: Nanos, earmark: Earmark, chunks: u32, brain: &mut Brain) {
        let Some(arrival) = self.arrived(earmark) else { return };
        let Earmark { peer, nonce } = earmark;
        match arrival.claim {
            Claim::Loan => {
                // Its lender may have wanted it back, or died, while it came.
                let _ = self.book.timed_out(nonce);
                brain.give(earmark, chunks, Claim::Debt);
                self.asked_again_at = now.plus(self.terms.retry_ns);
            }
            Claim::Debt => {
                let _ = self.book.returned(nonce, peer, chunks);
            }
        }
    }

    /// What was being accepted, and no longer is.
    fn arrived(&mut self, earmark: Earmark) -> Option<Arrival> {
        let at = self.arriving.iter().position(|a| a.ordered && a.earmark == earmark)?;
        Some(self.arriving.remove(at))
    }

    /// A promise that did not hold: a loan is given up, and nobody is asked for a while, for whoever promises what cannot be
    /// taken may do so for ever; a debt is paid when the ledger says so again, or is nobody's because
    /// its debtor died.
    fn not_taken(&mut self, now: Nanos, earmark: Earmark, brain: &mut Brain) {
        let Some(arrival) = self.arrived(earmark) else { return };
        let Earmark { peer, nonce } = earmark;
        if arrival.claim == Claim::Loan {
            self.asked_again_at = now.plus(self.terms.retry_ns);
            if self.book.timed_out(nonce).is_ok() {
                self.letters.push(Letter::Withdraw { peer, nonce });
            }
        }
        if arrival.claim == Claim::Debt && !self.lends(earmark) {
            brain.regain(arrival.chunks);
        }
    }

    /// The loan is in the book.
    pub(super) fn lends(&self, Earmark { peer, nonce }: Earmark) -> bool {
        self.book.given().iter().any(|given| given.nonce == nonce && given.peer == peer)
    }
}

//! Records the borrower's side of loans.

use alloc::vec::Vec;

use super::{COUNT_BITS, LoanBook, LoanError, LoanIn, LoanInState, Nonce, ReturnEffect, ReturnOrder};
use crate::ids::Nanos;
use crate::peers::Peer;

impl LoanBook {
    /// Records a request of `chunks` to `peer` and returns the nonce of the loan. The budget does not change.
    ///
    /// # Panics
    /// If `chunks` is 0, or `peer` is the owner itself.
    pub fn ask(&mut self, peer: Peer, chunks: u32) -> Nonce {
        assert!(chunks > 0, "a request for a loan has chunks");
        assert!(peer != self.own_peer, "a tenant does not borrow from itself");
        self.count += 1;
        assert!(self.count < 1 << COUNT_BITS, "an instance asks fewer than 2^{COUNT_BITS} times");
        let nonce = Nonce(self.own_peer.instance << COUNT_BITS | self.count);
        self.loans_in.push(LoanIn { nonce, peer, state: LoanInState::Asked { chunks } });
        nonce
    }

    /// Checks that an answer matches a request; called before its earmark is accepted in the ledger.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`] (never requested, or no longer wanted: the lender takes its earmark back),
    /// [`LoanError::WrongPeer`], [`LoanError::AlreadyGranted`], [`LoanError::NoChunks`], [`LoanError::MoreThanAsked`].
    pub fn is_expected(&self, nonce: Nonce, peer: Peer, chunks: u32) -> Result<(), LoanError> {
        let at = self.loan_in_mut(nonce, peer)?;
        match self.loans_in[at].state {
            LoanInState::Held { .. } => Err(LoanError::AlreadyGranted { nonce }),
            LoanInState::Asked { .. } if chunks == 0 => Err(LoanError::NoChunks { nonce }),
            LoanInState::Asked { chunks: asked } if chunks > asked => {
                Err(LoanError::MoreThanAsked { nonce, asked, granted: chunks })
            }
            LoanInState::Asked { .. } => Ok(()),
        }
    }

    /// Records that the answer's earmark was accepted: its chunks join the budget.
    ///
    /// # Errors
    /// As [`LoanBook::is_expected`].
    pub fn granted(
        &mut self,
        nonce: Nonce,
        peer: Peer,
        chunks: u32,
        expires: Nanos,
    ) -> Result<(), LoanError> {
        self.is_expected(nonce, peer, chunks)?;
        let at = self.loan_in_index(nonce)?;
        self.loans_in[at].state = LoanInState::Held { chunks, vacating: 0, expires, orphaned: false };
        Ok(())
    }

    /// Records a denial.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`], [`LoanError::AlreadyGranted`].
    pub fn refused(&mut self, nonce: Nonce, peer: Peer) -> Result<(), LoanError> {
        self.loan_in_mut(nonce, peer)?;
        self.timed_out(nonce).map(|_| ())
    }

    /// Records that no answer arrived in time, or that its earmark was gone. Later answers are rejected. Returns the
    /// peer to notify.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::AlreadyGranted`].
    pub fn timed_out(&mut self, nonce: Nonce) -> Result<Peer, LoanError> {
        let at = self.loan_in_index(nonce)?;
        match self.loans_in[at].state {
            LoanInState::Held { .. } => Err(LoanError::AlreadyGranted { nonce }),
            LoanInState::Asked { .. } => Ok(self.loans_in.remove(at).peer),
        }
    }

    /// Records a renewal. It never shortens the loan, so a stale answer has no effect.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`], [`LoanError::NotGranted`], [`LoanError::NotRenewable`] if
    /// all of it must already be vacated.
    pub fn renewed(&mut self, nonce: Nonce, peer: Peer, until: Nanos) -> Result<(), LoanError> {
        let at = self.loan_in_mut(nonce, peer)?;
        match &mut self.loans_in[at].state {
            LoanInState::Asked { .. } => Err(LoanError::NotGranted { nonce }),
            LoanInState::Held { chunks, vacating, .. } if vacating == chunks => {
                Err(LoanError::NotRenewable { nonce })
            }
            LoanInState::Held { expires, .. } => {
                *expires = (*expires).max(until);
                Ok(())
            }
        }
    }

    /// Records a revocation of `chunks`, or of all that is held if that is less. Returns what to vacate, including
    /// earlier orders for this loan. A pending request is dropped, and its answer will be rejected.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`].
    pub fn revoked(&mut self, nonce: Nonce, peer: Peer, chunks: u32) -> Result<ReturnOrder, LoanError> {
        let at = self.loan_in_mut(nonce, peer)?;
        match &mut self.loans_in[at].state {
            LoanInState::Asked { .. } => Ok(self.loans_in.remove(at).vacate()),
            LoanInState::Held { chunks: held, vacating, .. } => {
                *vacating = (*vacating).max(chunks.min(*held));
                Ok(self.loans_in[at].vacate())
            }
        }
    }

    /// Returns the loans that expired, each once; afterwards [`LoanIn::vacating`] includes them until they are
    /// returned.
    pub fn expired(&mut self, now: Nanos) -> Vec<ReturnOrder> {
        self.loans_in.iter_mut().filter_map(|taken| taken.expire(now)).collect()
    }

    /// Records `returned` vacated chunks, ordered or not: they leave the budget, then the caller earmarks them.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::NotGranted`], [`LoanError::NoChunks`], [`LoanError::MoreThanLent`].
    pub fn on_gave_back(&mut self, nonce: Nonce, returned: u32) -> Result<ReturnEffect, LoanError> {
        let at = self.loan_in_index(nonce)?;
        let peer = self.loans_in[at].peer;
        let LoanInState::Held { chunks, vacating, orphaned, .. } = &mut self.loans_in[at].state else {
            return Err(LoanError::NotGranted { nonce });
        };
        if returned == 0 {
            return Err(LoanError::NoChunks { nonce });
        }
        if returned > *chunks {
            return Err(LoanError::MoreThanLent { nonce, lent: *chunks, returned });
        }
        *chunks -= returned;
        *vacating = vacating.saturating_sub(returned);
        let (to, empty) = ((!*orphaned).then_some(peer), *chunks == 0);
        if empty {
            self.loans_in.remove(at);
        }
        Ok(ReturnEffect { nonce, to, chunks: returned })
    }

    fn loan_in_index(&self, nonce: Nonce) -> Result<usize, LoanError> {
        let at = self.loans_in.iter().position(|taken| taken.nonce == nonce);
        at.ok_or(LoanError::UnknownNonce { nonce })
    }

    fn loan_in_mut(&self, nonce: Nonce, got: Peer) -> Result<usize, LoanError> {
        let at = self.loan_in_index(nonce)?;
        let expected = self.loans_in[at].peer;
        if expected == got { Ok(at) } else { Err(LoanError::WrongPeer { nonce, expected, got }) }
    }
}

impl LoanIn {
    fn expiry(&self) -> Option<Nanos> {
        match self.state {
            LoanInState::Held { chunks, vacating, expires, .. } if vacating < chunks => Some(expires),
            _ => None,
        }
    }

    fn expire(&mut self, now: Nanos) -> Option<ReturnOrder> {
        self.expiry().filter(|expires| *expires <= now)?;
        if let LoanInState::Held { chunks, vacating, .. } = &mut self.state {
            *vacating = *chunks;
        }
        Some(self.vacate())
    }
}

//! What a borrower writes into its book.

use alloc::vec::Vec;

use super::{COUNT_BITS, LoanBook, LoanError, LoanIn, LoanInState, Nonce, ReturnEffect, ReturnOrder};
use crate::ids::Nanos;
use crate::peers::Peer;

impl LoanBook {
    /// It asks `peer` for so many chunks; the name of the grant to come. The budget stays.
    ///
    /// # Panics
    /// If it asks for nothing, or asks itself.
    pub fn ask(&mut self, peer: Peer, chunks: u32) -> Nonce {
        assert!(chunks > 0, "nobody asks for nothing");
        assert!(peer != self.own_peer, "nobody borrows from itself");
        self.count += 1;
        assert!(self.count < 1 << COUNT_BITS, "a life asks fewer than 2^{COUNT_BITS} times");
        let nonce = Nonce(self.own_peer.instance << COUNT_BITS | self.count);
        self.loans_in.push(LoanIn { nonce, peer, state: LoanInState::Asked { chunks } });
        nonce
    }

    /// Whether such an answer fits: before its earmark is accepted in the ledger.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`] (never asked, or no longer wanted: the lender takes its earmark back),
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

    /// The earmark of this answer was accepted: its chunks are in the budget.
    ///
    /// # Errors
    /// As [`LoanBook::expects`].
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

    /// The answer was no.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`], [`LoanError::AlreadyGranted`].
    pub fn refused(&mut self, nonce: Nonce, peer: Peer) -> Result<(), LoanError> {
        self.loan_in_mut(nonce, peer)?;
        self.timed_out(nonce).map(|_| ())
    }

    /// No answer came in time, or its earmark was gone: an answer is refused from now on. Whom to tell.
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

    /// The lender lets it stay for longer. Never shortens it, so an old answer does no harm.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`], [`LoanError::NotGranted`], [`LoanError::NotRenewable`] where all of it
    /// has to leave already.
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

    /// The lender wants so many chunks back, or all that is held if that is less. What to vacate, earlier orders for this
    /// grant included. A grant that was only asked for is given up: its answer is refused when it comes.
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

    /// What has to leave because its time is over, each grant once; [`LoanIn::vacating`] says so until it has left.
    pub fn expired(&mut self, now: Nanos) -> Vec<ReturnOrder> {
        self.loans_in.iter_mut().filter_map(|taken| taken.expire(now)).collect()
    }

    /// So many chunks were vacated, whether they had to or not: they leave the budget, and then are earmarked.
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

//! Records the lender's side of loans.

use super::{LoanBook, LoanError, LoanOut, Nonce, Recall, chunks_above_floor};
use crate::ids::Nanos;
use crate::peers::Peer;

impl LoanBook {
    /// Returns the chunks that can be lent: own share less loans, above the floor. Borrowed chunks are never lent.
    pub fn unlent_chunks_above_floor(&self) -> u32 {
        chunks_above_floor(self.share, self.lent_out(), self.floor)
    }

    /// Records a loan of `chunks`, which leave the budget now, before they are vacated and earmarked.
    ///
    /// # Errors
    /// [`LoanError::NoChunks`], [`LoanError::Replayed`], [`LoanError::BelowFloor`].
    pub fn lent(&mut self, nonce: Nonce, peer: Peer, chunks: u32, expires: Nanos) -> Result<(), LoanError> {
        self.check_loan(nonce, peer, chunks)?;
        self.answered.retain(|(borrower, _)| *borrower != peer);
        self.answered.push((peer, nonce));
        self.loans_out.push(LoanOut { nonce, peer, chunks, returned_chunks: 0, revoked: 0, expires });
        Ok(())
    }

    fn check_loan(&self, nonce: Nonce, peer: Peer, chunks: u32) -> Result<(), LoanError> {
        assert!(peer != self.own_peer, "a tenant does not lend to itself");
        if chunks == 0 {
            return Err(LoanError::NoChunks { nonce });
        }
        let answered = self.answered.iter().find(|(borrower, _)| *borrower == peer);
        if let Some((_, answered)) = answered.filter(|(_, answered)| nonce <= *answered) {
            return Err(LoanError::Replayed { nonce, answered: *answered });
        }
        if self.loans_out.iter().any(|given| given.nonce == nonce) {
            return Err(LoanError::Replayed { nonce, answered: nonce }); // another instance's nonce
        }
        let lendable = self.unlent_chunks_above_floor();
        if chunks > lendable {
            return Err(LoanError::BelowFloor { asked: chunks, lendable });
        }
        Ok(())
    }

    /// Records that the ledger returned an unaccepted earmark, or that none was written. Returns its chunks to the
    /// budget.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::Accepted`] if part of it was already returned.
    pub fn on_taken_back(&mut self, nonce: Nonce) -> Result<u32, LoanError> {
        let at = self.loan_out_index(nonce)?;
        if self.loans_out[at].returned_chunks > 0 {
            return Err(LoanError::Accepted { nonce });
        }
        Ok(self.loans_out.remove(at).chunks)
    }

    /// Extends a loan at the borrower's request. Never shortens it.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`], [`LoanError::NotRenewable`] if all of it was revoked.
    pub fn renew(&mut self, nonce: Nonce, peer: Peer, expires: Nanos) -> Result<Nanos, LoanError> {
        let at = self.loan_out_mut(nonce, peer)?;
        let given = &mut self.loans_out[at];
        if given.revoked == given.chunks {
            return Err(LoanError::NotRenewable { nonce });
        }
        given.expires = given.expires.max(expires);
        Ok(given.expires)
    }

    /// Revokes `chunks` of a loan, or all that is lent if that is less. Returns what to demand from the borrower.
    /// Idempotent.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`].
    pub fn revoke(&mut self, nonce: Nonce, chunks: u32) -> Result<Recall, LoanError> {
        let at = self.loan_out_index(nonce)?;
        let given = &mut self.loans_out[at];
        given.revoked = given.revoked.max(chunks.min(given.chunks));
        Ok(Recall { nonce, peer: given.peer, chunks: given.revoked })
    }

    /// Records returned chunks: once for each of the borrower's earmarks that the ledger let the lender accept.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`], [`LoanError::NoChunks`], [`LoanError::MoreThanLent`].
    pub fn returned(&mut self, nonce: Nonce, peer: Peer, chunks: u32) -> Result<(), LoanError> {
        let at = self.loan_out_mut(nonce, peer)?;
        let given = &mut self.loans_out[at];
        if chunks == 0 {
            return Err(LoanError::NoChunks { nonce });
        }
        if chunks > given.chunks {
            return Err(LoanError::MoreThanLent { nonce, lent: given.chunks, returned: chunks });
        }
        given.chunks -= chunks;
        given.returned_chunks += chunks;
        given.revoked = given.revoked.saturating_sub(chunks);
        self.loans_out.retain(|given| given.chunks > 0);
        Ok(())
    }

    /// Returns the loans that expired but are not returned. Their chunks still belong to the borrower.
    pub fn overdue(&self, now: Nanos) -> impl Iterator<Item = &LoanOut> {
        self.loans_out.iter().filter(move |given| given.expires <= now)
    }

    fn loan_out_index(&self, nonce: Nonce) -> Result<usize, LoanError> {
        let at = self.loans_out.iter().position(|given| given.nonce == nonce);
        at.ok_or(LoanError::UnknownNonce { nonce })
    }

    fn loan_out_mut(&self, nonce: Nonce, got: Peer) -> Result<usize, LoanError> {
        let at = self.loan_out_index(nonce)?;
        let expected = self.loans_out[at].peer;
        if expected == got { Ok(at) } else { Err(LoanError::WrongPeer { nonce, expected, got }) }
    }
}

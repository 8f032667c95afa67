//! What a lender writes into its book.

use super::{LoanBook, LoanError, LoanOut, Nonce, Recall};
use crate::ids::Nanos;
use crate::peers::Peer;

impl LoanBook {
    /// What it could lend: its own share, less what is lent, above its floor. Borrowed chunks are never lent on.
    pub fn lendable(&self) -> u32 {
        self.own_chunks().saturating_sub(self.floor)
    }

    /// It answers an ask with so many chunks, which leave its budget now. Before it vacates and earmarks them.
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
        assert!(peer != self.own_peer, "nobody lends to itself");
        if chunks == 0 {
            return Err(LoanError::NoChunks { nonce });
        }
        let answered = self.answered.iter().find(|(borrower, _)| *borrower == peer);
        if let Some((_, answered)) = answered.filter(|(_, answered)| nonce <= *answered) {
            return Err(LoanError::Replayed { nonce, answered: *answered });
        }
        if self.loans_out.iter().any(|given| given.nonce == nonce) {
            return Err(LoanError::Replayed { nonce, answered: nonce }); // another life's, which a peer should not know
        }
        let lendable = self.lendable();
        if chunks > lendable {
            return Err(LoanError::BelowFloor { asked: chunks, lendable });
        }
        Ok(())
    }

    /// The ledger gave an earmark back that was not accepted, or none was written. Its chunks are in the budget again.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::Accepted`] where some of it has come back already.
    pub fn on_taken_back(&mut self, nonce: Nonce) -> Result<u32, LoanError> {
        let at = self.loan_out_index(nonce)?;
        if self.loans_out[at].returned_chunks > 0 {
            return Err(LoanError::Accepted { nonce });
        }
        Ok(self.loans_out.remove(at).chunks)
    }

    /// The borrower wants it for longer. Never shortens it.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`], [`LoanError::WrongPeer`], [`LoanError::NotRenewable`] where all of it was revoked.
    pub fn renew(&mut self, nonce: Nonce, peer: Peer, expires: Nanos) -> Result<Nanos, LoanError> {
        let at = self.loan_out_mut(nonce, peer)?;
        let given = &mut self.loans_out[at];
        if given.revoked == given.chunks {
            return Err(LoanError::NotRenewable { nonce });
        }
        given.expires = given.expires.max(expires);
        Ok(given.expires)
    }

    /// It wants `chunks` of a grant back, or all that is away if that is less; what to ask of the borrower. Again and
    /// again is the same as once.
    ///
    /// # Errors
    /// [`LoanError::UnknownNonce`].
    pub fn revoke(&mut self, nonce: Nonce, chunks: u32) -> Result<Recall, LoanError> {
        let at = self.loan_out_index(nonce)?;
        let given = &mut self.loans_out[at];
        given.revoked = given.revoked.max(chunks.min(given.chunks));
        Ok(Recall { nonce, peer: given.peer, chunks: given.revoked })
    }

    /// Chunks came back: once for each earmark of the borrower that the ledger let it accept.
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

    /// Grants whose time is over and that are still away. Their chunks are still the borrower's.
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

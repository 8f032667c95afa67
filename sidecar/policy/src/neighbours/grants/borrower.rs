//! What a borrower writes into its book.

use alloc::vec::Vec;

use super::{Book, COUNT_BITS, GaveBack, Misfit, Nonce, Taken, TakenState, Vacate};
use crate::ids::Nanos;
use crate::neighbours::Peer;

impl Book {
    /// It asks `peer` for so many chunks; the name of the grant to come. The budget stays.
    ///
    /// # Panics
    /// If it asks for nothing, or asks itself.
    pub fn ask(&mut self, peer: Peer, chunks: u32) -> Nonce {
        assert!(chunks > 0, "nobody asks for nothing");
        assert!(peer != self.me, "nobody borrows from itself");
        self.count += 1;
        assert!(self.count < 1 << COUNT_BITS, "a life asks fewer than 2^{COUNT_BITS} times");
        let nonce = Nonce(self.me.instance << COUNT_BITS | self.count);
        self.taken.push(Taken { nonce, peer, state: TakenState::Asked { chunks } });
        nonce
    }

    /// Whether such an answer fits: before its earmark is accepted in the ledger.
    ///
    /// # Errors
    /// [`Misfit::UnknownNonce`] (never asked, or no longer wanted: the lender takes its earmark back),
    /// [`Misfit::WrongPeer`], [`Misfit::AlreadyGranted`], [`Misfit::NoChunks`], [`Misfit::MoreThanAsked`].
    pub fn expects(&self, nonce: Nonce, peer: Peer, chunks: u32) -> Result<(), Misfit> {
        let at = self.taken_with(nonce, peer)?;
        match self.taken[at].state {
            TakenState::Held { .. } => Err(Misfit::AlreadyGranted { nonce }),
            TakenState::Asked { .. } if chunks == 0 => Err(Misfit::NoChunks { nonce }),
            TakenState::Asked { chunks: asked } if chunks > asked => {
                Err(Misfit::MoreThanAsked { nonce, asked, granted: chunks })
            }
            TakenState::Asked { .. } => Ok(()),
        }
    }

    /// The earmark of this answer was accepted: its chunks are in the budget.
    ///
    /// # Errors
    /// As [`Book::expects`].
    pub fn granted(&mut self, nonce: Nonce, peer: Peer, chunks: u32, expires: Nanos) -> Result<(), Misfit> {
        self.expects(nonce, peer, chunks)?;
        let at = self.taken_at(nonce)?;
        self.taken[at].state = TakenState::Held { chunks, vacating: 0, expires, orphaned: false };
        Ok(())
    }

    /// The answer was no.
    ///
    /// # Errors
    /// [`Misfit::UnknownNonce`], [`Misfit::WrongPeer`], [`Misfit::AlreadyGranted`].
    pub fn refused(&mut self, nonce: Nonce, peer: Peer) -> Result<(), Misfit> {
        self.taken_with(nonce, peer)?;
        self.timed_out(nonce).map(|_| ())
    }

    /// No answer came in time, or its earmark was gone: an answer is refused from now on. Whom to tell.
    ///
    /// # Errors
    /// [`Misfit::UnknownNonce`], [`Misfit::AlreadyGranted`].
    pub fn timed_out(&mut self, nonce: Nonce) -> Result<Peer, Misfit> {
        let at = self.taken_at(nonce)?;
        match self.taken[at].state {
            TakenState::Held { .. } => Err(Misfit::AlreadyGranted { nonce }),
            TakenState::Asked { .. } => Ok(self.taken.remove(at).peer),
        }
    }

    /// The lender lets it stay for longer. Never shortens it, so an old answer does no harm.
    ///
    /// # Errors
    /// [`Misfit::UnknownNonce`], [`Misfit::WrongPeer`], [`Misfit::NotGranted`], [`Misfit::NotRenewable`] where all of it
    /// has to leave already.
    pub fn renewed(&mut self, nonce: Nonce, peer: Peer, until: Nanos) -> Result<(), Misfit> {
        let at = self.taken_with(nonce, peer)?;
        match &mut self.taken[at].state {
            TakenState::Asked { .. } => Err(Misfit::NotGranted { nonce }),
            TakenState::Held { chunks, vacating, .. } if vacating == chunks => {
                Err(Misfit::NotRenewable { nonce })
            }
            TakenState::Held { expires, .. } => {
                *expires = (*expires).max(until);
                Ok(())
            }
        }
    }

    /// The lender wants so many chunks back, or all that is held if that is less. What to vacate, earlier orders for this
    /// grant included. A grant that was only asked for is given up: its answer is refused when it comes.
    ///
    /// # Errors
    /// [`Misfit::UnknownNonce`], [`Misfit::WrongPeer`].
    pub fn revoked(&mut self, nonce: Nonce, peer: Peer, chunks: u32) -> Result<Vacate, Misfit> {
        let at = self.taken_with(nonce, peer)?;
        match &mut self.taken[at].state {
            TakenState::Asked { .. } => Ok(self.taken.remove(at).vacate()),
            TakenState::Held { chunks: held, vacating, .. } => {
                *vacating = (*vacating).max(chunks.min(*held));
                Ok(self.taken[at].vacate())
            }
        }
    }

    /// What has to leave because its time is over, each grant once; [`Taken::vacating`] says so until it has left.
    pub fn expired(&mut self, now: Nanos) -> Vec<Vacate> {
        self.taken.iter_mut().filter_map(|taken| taken.expire(now)).collect()
    }

    /// So many chunks were vacated, whether they had to or not: they leave the budget, and then are earmarked.
    ///
    /// # Errors
    /// [`Misfit::UnknownNonce`], [`Misfit::NotGranted`], [`Misfit::NoChunks`], [`Misfit::MoreThanLent`].
    pub fn gave_back(&mut self, nonce: Nonce, returned: u32) -> Result<GaveBack, Misfit> {
        let at = self.taken_at(nonce)?;
        let peer = self.taken[at].peer;
        let TakenState::Held { chunks, vacating, orphaned, .. } = &mut self.taken[at].state else {
            return Err(Misfit::NotGranted { nonce });
        };
        if returned == 0 {
            return Err(Misfit::NoChunks { nonce });
        }
        if returned > *chunks {
            return Err(Misfit::MoreThanLent { nonce, lent: *chunks, returned });
        }
        *chunks -= returned;
        *vacating = vacating.saturating_sub(returned);
        let (to, empty) = ((!*orphaned).then_some(peer), *chunks == 0);
        if empty {
            self.taken.remove(at);
        }
        Ok(GaveBack { nonce, to, chunks: returned })
    }

    fn taken_at(&self, nonce: Nonce) -> Result<usize, Misfit> {
        let at = self.taken.iter().position(|taken| taken.nonce == nonce);
        at.ok_or(Misfit::UnknownNonce { nonce })
    }

    fn taken_with(&self, nonce: Nonce, got: Peer) -> Result<usize, Misfit> {
        let at = self.taken_at(nonce)?;
        let expected = self.taken[at].peer;
        if expected == got { Ok(at) } else { Err(Misfit::WrongPeer { nonce, expected, got }) }
    }
}

impl Taken {
    fn expiry(&self) -> Option<Nanos> {
        match self.state {
            TakenState::Held { chunks, vacating, expires, .. } if vacating < chunks => Some(expires),
            _ => None,
        }
    }

    fn expire(&mut self, now: Nanos) -> Option<Vacate> {
        self.expiry().filter(|expires| *expires <= now)?;
        if let TakenState::Held { chunks, vacating, .. } = &mut self.state {
            *vacating = *chunks;
        }
        Some(self.vacate())
    }
}

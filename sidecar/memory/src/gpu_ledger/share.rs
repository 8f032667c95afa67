//! The share of a participant while it lives: what it may hold without asking anybody.
//!
//! Shares of the living sum to at most the capacity at any instant. Each is looked at and changed within one hold of the
//! guard, by one store. A share follows what its tenant does, never the other way round: it rises before the tenant holds
//! more, and falls after it holds less. Nobody waits for the guard here: a tenant's scheduler asks, and asks again.

use std::sync::atomic::Ordering;

use super::accounting::LiveSet;
use super::error::LedgerError;
use super::layout::record as word;
use super::mapped_words::MappedWords;
use super::participant::ParticipantHandle;

const SHARE_MISMATCH: &str = "a record says another share than its owner was granted";

/// What somebody who joins would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// Bytes that it never lends; 0 = not known yet.
    pub floor_bytes: u64,
    /// Bytes of its share.
    pub share_bytes: u64,
    /// Fewer than these, or than the floor, are of no use to it.
    pub min_bytes: u64,
}

/// Sum over `living` of the word `at`. What a faulty neighbour writes ends nobody else.
pub(super) fn sum_word(words: &MappedWords, living: LiveSet, at: usize) -> u64 {
    living.records(words).map(|record| record.get(at)).fold(0, u64::saturating_add)
}

impl ParticipantHandle {
    /// Bytes that are granted as its share.
    pub fn share_bytes(&self) -> u64 {
        self.granted_bytes.load(Ordering::Acquire)
    }

    /// Has its share rise to `wanted` bytes, or as far as others leave room. Never lowers it. Returns the share.
    ///
    /// # Errors
    /// The guard is not free, or the ledger is damaged: nothing has changed.
    pub fn raise_share(&self, wanted: u64) -> Result<u64, LedgerError> {
        let unlocked = self.files.words.faults.unlocked_share;
        let _guard = if unlocked { None } else { Some(self.try_lock()?) };
        let own = self.verified_share()?;
        if wanted <= own {
            return Ok(own);
        }
        let taken = sum_word(&self.files.words, self.files.live_set()?, word::SHARE).saturating_sub(own);
        let left = self.files.capacity_bytes().saturating_sub(taken);
        self.files.words.check_valid()?;
        Ok(self.set_share(wanted.min(left).max(own)))
    }

    /// Leaves its share but for `to` bytes to others. Never raises it, and keeps the floor. Returns the share.
    ///
    /// # Errors
    /// As of [`Seat::ask_share`].
    pub fn release_share(&self, to: u64) -> Result<u64, LedgerError> {
        let _guard = self.try_lock()?;
        let (own, floor) = (self.verified_share()?, self.record().get(word::FLOOR));
        Ok(self.set_share(to.max(floor).min(own)))
    }

    /// The floor, which a participant may learn after it has joined, and which may change. At most its share.
    ///
    /// # Errors
    /// As of [`Seat::ask_share`].
    ///
    /// # Panics
    /// When it is more than the share: whoever declares it has looked.
    pub fn set_floor(&self, bytes: u64) -> Result<(), LedgerError> {
        let _guard = self.try_lock()?;
        let share = self.verified_share()?;
        assert!(bytes <= share, "a floor of {bytes} bytes is within the share of {share}");
        self.record().set(word::FLOOR, bytes);
        Ok(())
    }

    /// The share as its owner knows it and the file says it.
    fn verified_share(&self) -> Result<u64, LedgerError> {
        let own = self.share_bytes();
        if self.record().get(word::SHARE) == own {
            Ok(own)
        } else {
            Err(self.files.words.mark_damaged(SHARE_MISMATCH))
        }
    }

    /// Writes nothing when nothing changes.
    fn set_share(&self, bytes: u64) -> u64 {
        if bytes != self.share_bytes() {
            self.record().set(word::SHARE, bytes);
            self.granted_bytes.store(bytes, Ordering::Release);
        }
        bytes
    }
}

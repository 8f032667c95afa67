//! The share of a live participant: the bytes that it may hold without asking another.
//!
//! The shares of live participants sum to at most the capacity at any instant. A participant checks and
//! changes its share under one hold of the guard, by one store. A share rises before its tenant holds more,
//! and falls after it holds less. These functions do not wait for the guard; the tenant's scheduler retries.

use std::sync::atomic::Ordering;

use super::error::LedgerError;
use super::layout::record as word;
use super::live_set::sum_word;
use super::participant::ParticipantHandle;

const SHARE_MISMATCH: &str = "a record says another share than its owner was granted";

impl ParticipantHandle {
    /// Returns the granted share, bytes.
    pub fn share_bytes(&self) -> u64 {
        self.granted_bytes.load(Ordering::Acquire)
    }

    /// Raises the share to `wanted` bytes, or as far as others leave capacity. Never lowers it. Returns the
    /// share.
    ///
    /// # Errors
    /// The guard is not free, or the ledger is damaged. Nothing has changed.
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

    /// Lowers the share to `to` bytes, but not below the floor. Never raises it. Returns the share.
    ///
    /// # Errors
    /// As for [`ParticipantHandle::raise_share`].
    pub fn release_share(&self, to: u64) -> Result<u64, LedgerError> {
        let _guard = self.try_lock()?;
        let (own, floor) = (self.verified_share()?, self.record().get(word::FLOOR));
        Ok(self.set_share(to.max(floor).min(own)))
    }

    /// Sets the floor, which a participant may learn after it has joined, and which may change.
    ///
    /// # Errors
    /// As for [`ParticipantHandle::raise_share`].
    ///
    /// # Panics
    /// If the floor exceeds the share; the caller checks this first.
    pub fn set_floor(&self, bytes: u64) -> Result<(), LedgerError> {
        let _guard = self.try_lock()?;
        let share = self.verified_share()?;
        assert!(bytes <= share, "a floor of {bytes} bytes is within the share of {share}");
        self.record().set(word::FLOOR, bytes);
        Ok(())
    }

    /// Returns the share if the owner's count and the file agree.
    fn verified_share(&self) -> Result<u64, LedgerError> {
        let own = self.share_bytes();
        if self.record().get(word::SHARE) == own {
            Ok(own)
        } else {
            Err(self.files.words.mark_damaged(SHARE_MISMATCH))
        }
    }

    fn set_share(&self, bytes: u64) -> u64 {
        if bytes != self.share_bytes() {
            self.record().set(word::SHARE, bytes);
            self.granted_bytes.store(bytes, Ordering::Release);
        }
        bytes
    }
}

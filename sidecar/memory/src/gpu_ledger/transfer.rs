//! Transfers of bytes from a lender to a borrower.
//!
//! Each function writes under the guard, in the order of the table in `docs/peers.md`, so no running
//! process sees the bytes counted twice. If a sidecar exits within a transfer, they stay counted twice until
//! its engine exits, and `UNSETTLED` contains their number.

use sluice_policy::peers::Peer;

use super::accounting::{EarmarkState, earmark_state};
use super::error::LedgerError;
use super::layout::{TRANSFERS, record as word};
use super::participant::ParticipantHandle;
use super::record::{EarmarkEntry, Record};

/// Numbers of entries that [`ParticipantHandle::clear_settled`] cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClearedTransfers {
    /// Own earmarks that their borrowers have accepted, or whose borrowers have exited.
    pub earmarks: usize,
    /// Accepted nonces whose lenders have cleared the earmark or have exited.
    pub nonces: usize,
}

impl ParticipantHandle {
    /// Moves `bytes` that are held, and whose memory was freed, to an earmark for `to`, together with
    /// `spare_bytes` that no participant holds and that must fit. `nonce` is not 0, and no waiting earmark of
    /// this instance has it.
    pub fn earmark(&self, to: &Peer, bytes: u64, spare_bytes: u64, nonce: u64) -> Result<(), LedgerError> {
        let unlocked = self.files.words.faults.subtract_first;
        let _guard = if unlocked { None } else { Some(self.lock()?) };
        let record = self.record();
        if record.held() < bytes {
            return Err(LedgerError::NotHeld { held: record.held(), asked: bytes });
        }
        let borrower = self.live_peer_record(to)?;
        if nonce == 0 || to.instance == self.instance() || !self.clear_previous(&borrower, nonce) {
            return Err(LedgerError::InvalidNonce { nonce });
        }
        let slot = record.free_earmark().ok_or(LedgerError::TooManyTransfers { limit: TRANSFERS })?;
        if spare_bytes > 0 {
            self.check_capacity(spare_bytes)?;
        }
        self.files.words.check_valid()?;
        self.write_earmark(EarmarkEntry { slot, nonce, to: to.instance, bytes: bytes + spare_bytes }, bytes)
    }

    /// Clears the previous earmark of the same nonce on both sides, because a loan may be returned in parts
    /// under one nonce. Without this the next part would wait until both sides clear settled transfers.
    /// Returns false if the previous part is still waiting.
    ///
    /// The accepted nonce is in the borrower's record. The guard excludes concurrent writes, and without the
    /// earmark the nonce has no effect, so an exit between the two writes leaves only entries that
    /// [`ParticipantHandle::clear_settled`] clears.
    fn clear_previous(&self, borrower: &Record<'_>, nonce: u64) -> bool {
        let accepted = borrower.accepted().find(|(_, name, from)| (*name, *from) == (nonce, self.instance()));
        if let Some(entry) = self.record().earmark(nonce) {
            if accepted.is_none() || entry.to != borrower.instance() {
                return false;
            }
            self.record().clear_earmark(entry.slot);
        }
        if let Some((slot, ..)) = accepted {
            borrower.clear_accepted(slot);
        }
        true
    }

    /// Writes the entry; `held` of its bytes were held until now.
    fn write_earmark(&self, entry: EarmarkEntry, held: u64) -> Result<(), LedgerError> {
        let (record, faults) = (self.record(), &self.files.words.faults);
        if faults.subtract_first {
            self.subtract_held(held)?;
            record.write_earmark(entry);
            return Ok(());
        }
        record.set(word::UNSETTLED, held);
        if !faults.lose_earmark {
            record.write_earmark(entry);
        }
        self.subtract_held(held)?;
        record.set(word::UNSETTLED, 0);
        Ok(())
    }

    /// Accepts the earmark of `from`; its bytes are held from now on. If its size is not `bytes`, leaves it
    /// unchanged, and its lender can cancel it.
    pub fn accept(&self, from: &Peer, nonce: u64, bytes: u64) -> Result<(), LedgerError> {
        let _guard = self.lock()?;
        let record = self.record();
        if record.has_accepted(from.instance, nonce) {
            return Err(LedgerError::AlreadyAccepted { nonce });
        }
        // The earmarks of an exited lender are no longer counted, and another participant may have reserved
        // those bytes.
        let lender = self.live_peer_record(from)?;
        let found = lender.earmark(nonce).filter(|entry| entry.to == self.instance());
        let entry = found.ok_or(LedgerError::NoEarmark { nonce })?;
        if entry.bytes != bytes {
            return Err(LedgerError::EarmarkSizeMismatch { nonce, earmarked: entry.bytes });
        }
        let slot = record.free_accepted().ok_or(LedgerError::TooManyTransfers { limit: TRANSFERS })?;
        self.files.words.check_valid()?;
        record.set(word::UNSETTLED, bytes);
        self.add_held(bytes);
        record.write_accepted(slot, from.instance, nonce);
        record.set(word::UNSETTLED, 0);
        Ok(())
    }

    /// Cancels an earmark that was not accepted and returns its bytes, which no participant holds from now
    /// on. The earmark of an exited borrower was not counted any more.
    pub fn cancel_earmark(&self, nonce: u64) -> Result<u64, LedgerError> {
        let _guard = self.lock()?;
        let record = self.record();
        let entry = record.earmark(nonce).ok_or(LedgerError::NoEarmark { nonce })?;
        match earmark_state(&self.files.words, self.instance(), &entry, self.files.live_set()?) {
            EarmarkState::Accepted => return Err(LedgerError::AlreadyAccepted { nonce }),
            EarmarkState::Waiting | EarmarkState::Orphaned => record.clear_earmark(entry.slot),
        }
        Ok(entry.bytes)
    }

    /// Clears settled entries of this participant: own earmarks that were accepted or whose borrowers have
    /// exited, and accepted nonces without an earmark.
    pub fn clear_settled(&self) -> Result<ClearedTransfers, LedgerError> {
        let _guard = self.lock()?;
        let living = self.files.live_set()?;
        let (words, record) = (&self.files.words, self.record());
        let mut cleared = ClearedTransfers::default();
        for entry in record.earmarks() {
            if earmark_state(words, self.instance(), &entry, living) != EarmarkState::Waiting {
                record.clear_earmark(entry.slot);
                cleared.earmarks += 1;
            }
        }
        for (slot, nonce, lender) in record.accepted() {
            let waits =
                living.of_instance(words, lender).is_some_and(|lender| lender.earmark(nonce).is_some());
            if !waits {
                record.clear_accepted(slot);
                cleared.nonces += 1;
            }
        }
        Ok(cleared)
    }

    fn live_peer_record(&self, peer: &Peer) -> Result<Record<'_>, LedgerError> {
        let gone = LedgerError::PeerDead { peer: *peer };
        if peer.index >= super::layout::RECORDS || peer.instance == 0 {
            return Err(gone);
        }
        let record = self.files.record(peer.index);
        let same = record.instance() == peer.instance && self.files.is_live(peer.index)?;
        if same { Ok(record) } else { Err(gone) }
    }
}

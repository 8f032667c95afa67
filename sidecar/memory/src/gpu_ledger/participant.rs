//! The handle of a participant on its own record.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_policy::peers::Peer;

use super::accounting::{LedgerAudit, Participant, sum_counted};
use super::error::{JoinError, LedgerError, kernel_error};
use super::guard::{Guard, LedgerFiles};
use super::layout::{RECORDS, header, record as word};
use super::live_set::{LiveSet, sum_word};
use super::locks;
use super::record::{self, Record};
use super::share_request::ShareRequest;
use super::slice_tracker::SliceTracker;

/// A record that this participant owns while a process has the open file description that
/// [`ParticipantHandle::liveness`] returns.
///
/// Dropping the handle does not free the bytes held, because an engine that has the description may still map
/// them. They are freed when the last process with the description exits.
#[derive(Debug)]
pub struct ParticipantHandle {
    pub(super) files: Arc<LedgerFiles>,
    pub(super) peer: Peer,
    /// Locks the byte of the record and, while this participant holds the time slice, the byte of its epoch.
    pub(super) liveness_fd: OwnedFd,
    /// Reserved bytes by this process's own count; a faulty peer may have changed the count in the file.
    reserved_bytes: AtomicU64,
    /// Granted share by this process's own count, bytes.
    pub(super) granted_bytes: AtomicU64,
    /// This process's state of its time slices.
    pub(super) slices: SliceTracker,
}

impl ParticipantHandle {
    pub(super) fn join(
        shared: &Arc<LedgerFiles>,
        name: &str,
        wish: ShareRequest,
    ) -> Result<ParticipantHandle, JoinError> {
        check_name(name)?;
        let ShareRequest { floor_bytes, share_bytes, .. } = wish;
        if share_bytes < floor_bytes {
            return Err(JoinError::ShareBelowFloor { floor_bytes, share_bytes });
        }
        let life = locks::open_lock_file(shared.locks_path())
            .map_err(|source| JoinError::Kernel { call: "open", source })?;
        let _guard = shared.lock(0)?;
        if !shared.is_current()? {
            return Err(JoinError::Replaced);
        }
        let share_bytes = admit(shared, name, wish)?;
        let record = claim_record(shared)?;
        let taken = locks::try_lock(life.as_fd(), locks::liveness_byte(record.index))
            .map_err(kernel_error("fcntl"))?;
        assert!(taken, "records are taken under the guard alone");
        let instance = shared.words.take_next(header::NEXT_INSTANCE);
        let peer = Peer { index: record.index, instance };
        record.set_name(name);
        record.set(word::FLOOR, floor_bytes);
        record.set(word::SHARE, share_bytes);
        record.set(word::INSTANCE, peer.instance);
        Ok(ParticipantHandle {
            files: Arc::clone(shared),
            peer,
            liveness_fd: life,
            reserved_bytes: AtomicU64::new(0),
            granted_bytes: AtomicU64::new(share_bytes),
            slices: SliceTracker::default(),
        })
    }

    /// Returns the record and instance by which others refer to this participant.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the index of the record.
    pub fn index(&self) -> u32 {
        self.peer.index
    }

    /// Returns the instance number.
    pub fn instance(&self) -> u64 {
        self.peer.instance
    }

    /// Returns the open file description to pass to the engine. While the sidecar or the engine has it, the
    /// participant counts as live and keeps a time slice that it holds.
    pub fn liveness(&self) -> BorrowedFd<'_> {
        self.liveness_fd.as_fd()
    }

    /// Returns the reserved bytes.
    pub fn held_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Acquire)
    }

    /// Reserves `bytes` more. Fails if they do not fit in addition to all counted bytes.
    pub fn reserve(&self, bytes: u64) -> Result<(), LedgerError> {
        let unlocked = self.files.words.faults.unlocked_reserve;
        let _guard = if unlocked { None } else { Some(self.lock()?) };
        self.check_capacity(bytes)?;
        self.files.words.check_valid()?;
        self.add_held(bytes);
        Ok(())
    }

    /// Takes the guard in order to count bytes.
    pub(super) fn lock(&self) -> Result<Guard<'_>, LedgerError> {
        self.check_own_record(self.files.lock(self.instance())?)
    }

    /// Takes the guard if it is free, for callers that must not wait.
    pub(super) fn try_lock(&self) -> Result<Guard<'_>, LedgerError> {
        self.check_own_record(self.files.lock_within(Duration::ZERO, self.instance())?)
    }

    fn check_own_record<'a>(&self, guard: Guard<'a>) -> Result<Guard<'a>, LedgerError> {
        self.files.words.check_record()?;
        if self.record().instance() != self.instance() {
            return Err(self.files.words.mark_damaged("the record of this tenant names another life"));
        }
        Ok(guard)
    }

    pub(super) fn add_held(&self, bytes: u64) {
        self.reserved_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.record().add_held(bytes);
    }

    /// Panics if fewer bytes are held: the owner released bytes that it does not have.
    pub(super) fn subtract_held(&self, bytes: u64) -> Result<(), LedgerError> {
        let less = self
            .reserved_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| held.checked_sub(bytes));
        if let Err(held) = less {
            panic!("{bytes} bytes are given back of {held} that are held");
        }
        self.record().subtract_held(bytes)
    }

    /// Releases reserved bytes after their memory was freed. Needs no guard. Panics if fewer are held.
    /// Reports no damage of the ledger; see [`ParticipantHandle::damage`].
    pub fn release(&self, bytes: u64) {
        let _ = self.subtract_held(bytes);
    }

    /// Returns why this tenant no longer counts bytes by the ledger, if so. The bytes held stay held.
    pub fn damage(&self) -> Option<LedgerError> {
        self.files.words.check_valid().err()
    }

    /// As [`GpuLedger::survey`](super::GpuLedger::survey).
    pub fn survey(&self) -> Result<Vec<Participant>, LedgerError> {
        self.files.survey()
    }

    /// As [`GpuLedger::audit`](super::GpuLedger::audit).
    pub fn audit(&self) -> Result<LedgerAudit, LedgerError> {
        self.files.audit()
    }

    pub(super) fn record(&self) -> Record<'_> {
        self.files.record(self.peer.index)
    }

    /// Asks the kernel which participants are live only if the bytes do not fit with all of them counted.
    pub(super) fn check_capacity(&self, asked: u64) -> Result<(), LedgerError> {
        let (words, capacity) = (&self.files.words, self.files.capacity_bytes());
        let fits = |counted: u64| counted.checked_add(asked).is_some_and(|sum| sum <= capacity);
        if fits(sum_counted(words, LiveSet::ALL)) {
            return Ok(());
        }
        let counted = sum_counted(words, self.files.live_set()?);
        if fits(counted) { Ok(()) } else { Err(LedgerError::OutOfMemory { counted, capacity, asked }) }
    }
}

impl Drop for ParticipantHandle {
    fn drop(&mut self) {
        // Only wakes waiters earlier: a ticket ends with its owner in any case.
        if self.record().get(word::TICKET) != 0 {
            let _ = self.slice_queue().cancel();
        }
    }
}

fn check_name(name: &str) -> Result<(), JoinError> {
    let (bytes, limit_bytes) = (name.len(), word::NAME_BYTES);
    if bytes == 0 || bytes > limit_bytes {
        return Err(JoinError::InvalidName { bytes, limit_bytes });
    }
    Ok(())
}

/// Checks that live participants leave the name and enough capacity. Returns the share to grant, bytes.
fn admit(shared: &LedgerFiles, name: &str, wish: ShareRequest) -> Result<u64, JoinError> {
    let living = shared.live_set()?;
    if let Some(same) = living.records(&shared.words).find(|record| record.name() == name) {
        return Err(JoinError::NameInUse { name: name.to_owned(), index: same.index });
    }
    let capacity = shared.capacity_bytes();
    let least = wish.min_bytes.max(wish.floor_bytes).min(wish.share_bytes);
    for (what, at, asked) in [("floor", word::FLOOR, wish.floor_bytes), ("share", word::SHARE, least)] {
        let taken = sum_word(&shared.words, living, at);
        if taken.checked_add(asked).is_none_or(|sum| sum > capacity) {
            return Err(JoinError::Overcommitted { what, taken, asked, capacity });
        }
    }
    let left = capacity.saturating_sub(sum_word(&shared.words, living, word::SHARE));
    Ok(wish.share_bytes.min(left))
}

/// Returns a record without a live owner. Clears its words before it is locked, so that those of the previous
/// owner never count again.
fn claim_record(shared: &LedgerFiles) -> Result<Record<'_>, JoinError> {
    for record in record::all(&shared.words) {
        if !shared.is_live(record.index)? {
            record.clear();
            return Ok(record);
        }
    }
    Err(JoinError::Full { records: RECORDS })
}

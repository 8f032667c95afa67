//! A participant's own place in the neighbourhood.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_policy::peers::Peer;

use super::accounting::{LedgerAudit, LiveSet, Participant, sum_counted};
use super::error::{JoinError, LedgerError, kernel_error};
use super::guard::{Guard, LedgerFiles};
use super::layout::{RECORDS, header, record as word};
use super::locks;
use super::record::{self, Record};
use super::share::{self, ShareRequest};
use super::slice_holder::SliceTracker;
use super::time_slice::SliceQueue;

/// A record that is ours as long as the description lives that [`Seat::liveness`] shows.
///
/// Dropping the seat leaves what is held as it stands: an engine that has the description may still map it. The end
/// of the last process that has it is what frees.
#[derive(Debug)]
pub struct ParticipantHandle {
    pub(super) files: Arc<LedgerFiles>,
    pub(super) peer: Peer,
    /// Holds the byte of the record and, while this participant has the turn, the byte of its epoch.
    pub(super) liveness_fd: OwnedFd,
    /// Bytes that are reserved, by this process's own account: what the file says may be a faulty neighbour's word.
    reserved_bytes: AtomicU64,
    /// Bytes that are granted as its share, by this process's own account.
    pub(super) granted_bytes: AtomicU64,
    /// What this process knows of its turns.
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

    /// How others name this life of the participant.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The record.
    pub fn index(&self) -> u32 {
        self.peer.index
    }

    /// The nonce of this life.
    pub fn instance(&self) -> u64 {
        self.peer.instance
    }

    /// The description to pass to the engine: while one of both has it, the participant counts as living and keeps the
    /// turn if it had it.
    pub fn liveness(&self) -> BorrowedFd<'_> {
        self.liveness_fd.as_fd()
    }

    /// Bytes that are reserved.
    pub fn held_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Acquire)
    }

    /// Reserves `bytes` more if they fit beside all that is counted.
    pub fn reserve(&self, bytes: u64) -> Result<(), LedgerError> {
        let unlocked = self.files.words.faults.unlocked_reserve;
        let _guard = if unlocked { None } else { Some(self.lock()?) };
        self.check_capacity(bytes)?;
        self.files.words.check_valid()?;
        self.add_held(bytes);
        Ok(())
    }

    /// The guard, to count bytes.
    pub(super) fn lock(&self) -> Result<Guard<'_>, LedgerError> {
        self.check_own_record(self.files.lock(self.instance())?)
    }

    /// The guard, if it is free: for who must not wait.
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

    /// Panics when less is held: its owner gives back what it does not have.
    pub(super) fn subtract_held(&self, bytes: u64) -> Result<(), LedgerError> {
        let less = self
            .reserved_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| held.checked_sub(bytes));
        if let Err(held) = less {
            panic!("{bytes} bytes are given back of {held} that are held");
        }
        self.record().subtract_held(bytes)
    }

    /// Gives reserved bytes back, after the memory was released. Needs no lock. Panics when less is held. Of a damaged
    /// ledger there is nothing to tell whoever releases: [`Seat::trouble`] does.
    pub fn release(&self, bytes: u64) {
        let _ = self.subtract_held(bytes);
    }

    /// Why this tenant counts no bytes by the ledger any more, if that is so. What is held stays held.
    pub fn damage(&self) -> Option<LedgerError> {
        self.files.words.check_valid().err()
    }

    /// As [`Neighbourhood::survey`](super::Neighbourhood::survey).
    pub fn survey(&self) -> Result<Vec<Participant>, LedgerError> {
        self.files.survey()
    }

    /// As [`Neighbourhood::audit`](super::Neighbourhood::audit).
    pub fn audit(&self) -> Result<LedgerAudit, LedgerError> {
        self.files.audit()
    }

    /// The line for the turn, from this participant's side.
    pub fn slice_queue(&self) -> SliceQueue<'_> {
        SliceQueue::new(self)
    }

    pub(super) fn record(&self) -> Record<'_> {
        self.files.record(self.peer.index)
    }

    /// Asks the kernel who is dead only if the bytes do not fit beside everybody's.
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
        // Only a courtesy to those who wait behind: a ticket ends with its owner in any case.
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

/// Refuses whom the living leave no room or name for. Returns what is granted of the share.
fn admit(shared: &LedgerFiles, name: &str, wish: ShareRequest) -> Result<u64, JoinError> {
    let living = shared.live_set()?;
    if let Some(same) = living.records(&shared.words).find(|record| record.name() == name) {
        return Err(JoinError::NameInUse { name: name.to_owned(), index: same.index });
    }
    let capacity = shared.capacity_bytes();
    let least = wish.min_bytes.max(wish.floor_bytes).min(wish.share_bytes);
    for (what, at, asked) in [("floor", word::FLOOR, wish.floor_bytes), ("share", word::SHARE, least)] {
        let taken = share::sum_word(&shared.words, living, at);
        if taken.checked_add(asked).is_none_or(|sum| sum > capacity) {
            return Err(JoinError::Overcommitted { what, taken, asked, capacity });
        }
    }
    let left = capacity.saturating_sub(share::sum_word(&shared.words, living, word::SHARE));
    Ok(wish.share_bytes.min(left))
}

/// A record without an owner. Its words are gone before it is locked, so that the dead never count again.
fn claim_record(shared: &LedgerFiles) -> Result<Record<'_>, JoinError> {
    for record in record::all(&shared.words) {
        if !shared.is_live(record.index)? {
            record.clear();
            return Ok(record);
        }
    }
    Err(JoinError::Full { records: RECORDS })
}

//! The time slice that a participant holds: its deadline, its release, and its takeover by another after the
//! deadline.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_policy::peers::Peer;

use super::error::LedgerError;
use super::guard::LedgerFiles;
use super::layout::record as word;
use super::locks;
use super::record::{self, Record};
use super::slice_tracker::{ActiveSlice, SliceTakeover};
use super::time_slice::{Epoch, SliceQueue, since_boot_ns};

/// The participant that holds the time slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceHolder {
    /// Its record and instance.
    pub peer: Peer,
    /// Name with which it joined.
    pub name: String,
    /// Time since its deadline; zero before the deadline, or if it has none.
    pub overdue: Duration,
}

impl LedgerFiles {
    /// Returns the current time slice and its holder if a live participant holds it. Needs no guard: a record
    /// contains its epoch before that epoch becomes current, and the loop reads again after a change.
    pub(super) fn active_slice(&self) -> Result<Option<ActiveSlice>, LedgerError> {
        loop {
            let Some(epoch) = self.fence.epoch().filter(|epoch| *epoch != 0) else { return Ok(None) };
            if !self.is_slice_locked()? {
                return Ok(None);
            }
            let held = self.find_holder(epoch)?;
            if self.fence.epoch() == Some(epoch) {
                return Ok(held);
            }
        }
    }

    fn find_holder(&self, epoch: u64) -> Result<Option<ActiveSlice>, LedgerError> {
        for record in record::all(&self.words).filter(|record| record.get(word::SLICE_EPOCH) == epoch) {
            let held = ActiveSlice { peer: record.peer(), epoch, deadline_ns: record.get(word::DEADLINE) };
            // The deadline belongs to this epoch if the record still names the epoch afterwards.
            let same = record.get(word::SLICE_EPOCH) == epoch && record.peer() == held.peer;
            if same && held.peer.instance != 0 && self.is_live(record.index)? {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Describes for messages from which participant the slice is taken over. Under the guard no record
    /// changes its owner.
    pub(super) fn takeover(&self, held: &ActiveSlice) -> SliceTakeover {
        SliceTakeover { from: self.record(held.peer.index).name(), overdue: held.overdue(since_boot_ns()) }
    }
}

impl SliceQueue<'_> {
    /// Returns the epoch of the time slice that this participant holds; `None` as soon as another epoch is
    /// current.
    pub fn held(&self) -> Option<Epoch> {
        loop {
            let epoch = self.participant.slices.held_epoch.load(Ordering::Acquire);
            if epoch == 0 {
                return None;
            }
            if self.is_current_epoch(epoch) {
                return Some(Epoch(epoch));
            }
            self.on_taken_over(epoch);
        }
    }

    /// If the epoch is unreadable, the lock alone decides who holds the time slice.
    fn is_current_epoch(&self, epoch: u64) -> bool {
        let shared = &self.participant.files;
        shared.words.faults.ignore_fence || shared.fence.epoch().is_none_or(|in_force| in_force == epoch)
    }

    /// Drops the state and lock of the time slice `epoch`, which another participant has taken over.
    fn on_taken_over(&self, epoch: u64) {
        let (slices, mut own) = (&self.participant.slices, self.participant.slices.last_slice());
        if slices.held_epoch.compare_exchange(epoch, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            own.lost = true;
            slices.takeovers.fetch_add(1, Ordering::AcqRel);
            self.unlock_slice();
        }
    }

    /// Unlocks only the bytes of this participant's own description.
    fn unlock_slice(&self) {
        let result = locks::unlock(self.participant.liveness_fd.as_fd(), locks::slice_byte(None));
        assert!(result.is_ok(), "a lock that is held can be given back: {result:?}");
    }

    /// Sets the deadline `until_ns` by which this participant releases its time slice or sets a later
    /// deadline, nanoseconds of [the boot-time clock](crate::since_boot). After the deadline the next waiter
    /// may take the slice over. With 0 there is no deadline, and the participant keeps the slice while it is
    /// live.
    ///
    /// # Errors
    /// [`LedgerError::SliceTakenOver`] if the slice was taken over, [`LedgerError::SliceNotHeld`] if it holds
    /// none.
    pub fn set_deadline(&self, until_ns: u64) -> Result<(), LedgerError> {
        if self.held().is_none() {
            return Err(self.no_slice_error());
        }
        // Only one thread of this process at a time starts a time slice or changes its deadline.
        let own = self.participant.slices.last_slice();
        if self.participant.slices.held_epoch.load(Ordering::Acquire) == 0 {
            drop(own);
            return Err(self.no_slice_error());
        }
        self.participant.record().set(word::DEADLINE, until_ns);
        Ok(())
    }

    fn no_slice_error(&self) -> LedgerError {
        if self.participant.slices.last_slice().lost {
            LedgerError::SliceTakenOver
        } else {
            LedgerError::SliceNotHeld
        }
    }

    /// Releases the time slice and wakes the waiters.
    ///
    /// # Errors
    /// [`LedgerError::SliceTakenOver`], once, if the slice was taken over; the new holder is not affected.
    /// [`LedgerError::SliceNotHeld`] if it holds none.
    pub fn release(&self) -> Result<(), LedgerError> {
        let held = self.held().is_some();
        let (slices, mut own) = (&self.participant.slices, self.participant.slices.last_slice());
        let lost = std::mem::take(&mut own.lost);
        let epoch = slices.held_epoch.swap(0, Ordering::AcqRel);
        if !held || epoch == 0 {
            return Err(if lost { LedgerError::SliceTakenOver } else { LedgerError::SliceNotHeld });
        }
        // These are words of this participant's own record. After a takeover no participant reads them.
        let (record, now_ns) = (self.participant.record(), since_boot_ns());
        record.set(word::RELEASED_AT, now_ns);
        record.set(word::RELEASED_EPOCH, epoch);
        slices.released_ns.store(now_ns, Ordering::Release);
        self.unlock_slice();
        drop(own);
        self.wake_waiters();
        Ok(())
    }

    /// Returns how many time slices of this participant others took over after its deadline.
    pub fn takeovers_total(&self) -> u64 {
        // `held` also counts a takeover of the current time slice.
        self.held();
        self.participant.slices.takeovers.load(Ordering::Acquire)
    }

    /// Returns from which participant the last time slice was taken over; `None` if it was free.
    pub fn takeover(&self) -> Option<SliceTakeover> {
        self.participant.slices.last_slice().taken_over.clone()
    }

    /// Returns the current holder of the time slice, which may be this participant; `None` if the slice is
    /// free or its holder is unknown.
    pub fn holder(&self) -> Result<Option<SliceHolder>, LedgerError> {
        loop {
            let Some(held) = self.participant.files.active_slice()? else { return Ok(None) };
            let record = self.participant.files.record(held.peer.index);
            let name = record.name();
            // The name belongs to this instance if the record names the instance before and after the read.
            if record.peer() == held.peer {
                let overdue = held.overdue(since_boot_ns());
                return Ok(Some(SliceHolder { peer: held.peer, name, overdue }));
            }
        }
    }

    /// Returns how long the handover of the last time slice took: from its release by another participant, or
    /// from this participant's ticket if that was drawn later, to its acquisition. `None` if the previous
    /// holder was this participant, exited, or was overtaken.
    pub fn handover(&self) -> Option<Duration> {
        let ns = self.participant.slices.last_handover_ns.load(Ordering::Acquire);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// As [`SliceQueue::handover`], before the next epoch becomes current; 0 = no handover.
    pub(super) fn handover_ns(&self) -> u64 {
        let participant = self.participant;
        let in_force = self.current_epoch();
        let released = |record: &Record<'_>| in_force != 0 && record.get(word::RELEASED_EPOCH) == in_force;
        let before = record::all(&participant.files.words).find(released);
        match before.filter(|record| record.index != participant.index()) {
            Some(record) => {
                let begun_ns = record
                    .get(word::RELEASED_AT)
                    .max(participant.slices.requested_ns.load(Ordering::Relaxed));
                since_boot_ns().saturating_sub(begun_ns).max(1)
            }
            None => 0,
        }
    }

    /// Sleeps until another participant waits for the time slice that this one holds (returns `true`), the
    /// slice is released or taken over, or `limit` has passed.
    pub fn wait_for_waiter(&self, limit: Duration) -> Result<bool, LedgerError> {
        let deadline = Instant::now() + limit;
        loop {
            // Read the futex word first, so that a wake-up after a failed check is not missed.
            let bell = self.participant.files.words.futex_word().load(Ordering::Acquire);
            if self.held().is_none() {
                return Ok(false);
            }
            if self.waiters()? > 0 {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.futex_wait(bell, left)?;
        }
    }
}

//! The turn that a participant has: its deadline, its end, and how it loses the turn when it exceeds that deadline.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_policy::peers::Peer;

use super::error::LedgerError;
use super::guard::LedgerFiles;
use super::layout::record as word;
use super::locks;
use super::observed_duration::ObservedDuration;
use super::record::{self, Record};
use super::time_slice::{Epoch, SliceQueue, since_boot_ns};

/// The participant that has the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceHolder {
    /// Its record and life.
    pub peer: Peer,
    /// As it joined.
    pub name: String,
    /// How long its deadline is over; zero when it is not, or when it does not say one.
    pub overdue: Duration,
}

/// A turn that was taken over from a holder that exceeded its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceTakeover {
    /// The name of the holder before.
    pub from: String,
    /// How long its deadline was over.
    pub overdue: Duration,
}

/// The turn in force, as its holder's record says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveSlice {
    pub peer: Peer,
    pub epoch: u64,
    /// Nanoseconds of the clock since boot; 0 = none.
    pub deadline_ns: u64,
}

impl ActiveSlice {
    pub(super) fn is_overdue(&self, now_ns: u64) -> bool {
        self.deadline_ns != 0 && now_ns > self.deadline_ns
    }

    fn overdue(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(if self.is_overdue(now_ns) { now_ns - self.deadline_ns } else { 0 })
    }
}

/// What one process knows of its own turns.
#[derive(Debug, Default)]
pub(super) struct SliceTracker {
    /// The epoch of the turn that it has; 0 = none. It changes under `own` alone.
    pub(super) held_epoch: AtomicU64,
    /// The epoch of its last turn.
    pub(super) epoch: AtomicU64,
    /// When it released a turn last, nanoseconds of the clock since boot.
    pub(super) released_ns: AtomicU64,
    /// When the last ticket was drawn, nanoseconds of the clock since boot.
    pub(super) requested_ns: AtomicU64,
    /// How long the last hand-over to this participant took, nanoseconds; 0 = there was none.
    pub(super) last_handover_ns: AtomicU64,
    /// How many of its turns were taken over.
    takeovers: AtomicU64,
    last_slice: Mutex<LastSlice>,
    /// Participants that it skipped and has not reported yet.
    skipped: Mutex<Vec<String>>,
    /// How long it has seen that the turn is overdue, and that it lies although others are next.
    overdue_watch: Mutex<ObservedDuration>,
    idle_watch: Mutex<ObservedDuration>,
}

/// Of the turn that was taken last.
#[derive(Debug, Default)]
pub(super) struct LastSlice {
    taken_over: Option<SliceTakeover>,
    /// It was lost to another participant, and its release was not tried yet.
    lost: bool,
}

impl LastSlice {
    pub(super) fn reset(&mut self, taken_over: Option<SliceTakeover>) {
        *self = LastSlice { taken_over, lost: false };
    }
}

impl SliceTracker {
    pub(super) fn last_slice(&self) -> MutexGuard<'_, LastSlice> {
        lock(&self.last_slice)
    }

    pub(super) fn skipped(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.skipped)
    }

    pub(super) fn overdue_watch(&self) -> MutexGuard<'_, ObservedDuration> {
        lock(&self.overdue_watch)
    }

    pub(super) fn idle_watch(&self) -> MutexGuard<'_, ObservedDuration> {
        lock(&self.idle_watch)
    }
}

/// A panic under one of these leaves a value that is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LedgerFiles {
    /// The turn in force and its holder, if a living participant has it. Needs no lock: a record says its epoch before that epoch is
    /// in force, and a look that meets a change looks again.
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
            // The deadline is that of the epoch when the record still names it afterwards.
            let same = record.get(word::SLICE_EPOCH) == epoch && record.peer() == held.peer;
            if same && held.peer.instance != 0 && self.is_live(record.index)? {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// For people: from whom the turn is taken over. Under the guard no record gets another owner.
    pub(super) fn takeover(&self, held: &ActiveSlice) -> SliceTakeover {
        SliceTakeover { from: self.record(held.peer.index).name(), overdue: held.overdue(since_boot_ns()) }
    }
}

impl SliceQueue<'_> {
    /// The turn that this participant has. `None` from the moment on when another epoch is in force.
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

    /// Where no epoch can be seen, the lock alone says who has the turn.
    fn is_current_epoch(&self, epoch: u64) -> bool {
        let shared = &self.participant.files;
        shared.words.faults.ignore_fence || shared.fence.epoch().is_none_or(|in_force| in_force == epoch)
    }

    /// Another participant has taken the turn `epoch` over: drops what is left of it.
    fn on_taken_over(&self, epoch: u64) {
        let (turns, mut own) = (&self.participant.slices, self.participant.slices.last_slice());
        if turns.held_epoch.compare_exchange(epoch, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            own.lost = true;
            turns.takeovers.fetch_add(1, Ordering::AcqRel);
            self.unlock_slice();
        }
    }

    /// The own description alone: whatever others have stays.
    fn unlock_slice(&self) {
        let result = locks::unlock(self.participant.liveness_fd.as_fd(), locks::slice_byte(None));
        assert!(result.is_ok(), "a lock that is held can be given back: {result:?}");
    }

    /// Says by when this participant will have released the turn that it has, or said a later time here: `until_ns`
    /// nanoseconds of [the clock since boot](crate::since_boot). After that the next in line may take the turn over. 0 = it does
    /// not say, and keeps the turn as long as it lives.
    ///
    /// # Errors
    /// [`LedgerError::Overtaken`] when the turn was taken over, [`LedgerError::NoTurn`] when it has none.
    pub fn set_deadline(&self, until_ns: u64) -> Result<(), LedgerError> {
        if self.held().is_none() {
            return Err(self.no_slice_error());
        }
        // Of this process only one thread at a time begins a turn or changes its deadline.
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

    /// Gives the turn up and wakes those who wait.
    ///
    /// # Errors
    /// [`LedgerError::Overtaken`], once, when the turn was taken over: nothing of the new holder has changed.
    /// [`LedgerError::NoTurn`] when it has none.
    pub fn release(&self) -> Result<(), LedgerError> {
        let held = self.held().is_some();
        let (turns, mut own) = (&self.participant.slices, self.participant.slices.last_slice());
        let lost = std::mem::take(&mut own.lost);
        let epoch = turns.held_epoch.swap(0, Ordering::AcqRel);
        if !held || epoch == 0 {
            return Err(if lost { LedgerError::SliceTakenOver } else { LedgerError::SliceNotHeld });
        }
        // In its own record: where another has taken the turn over by now, nothing reads it.
        let (record, now_ns) = (self.participant.record(), since_boot_ns());
        record.set(word::RELEASED_AT, now_ns);
        record.set(word::RELEASED_EPOCH, epoch);
        turns.released_ns.store(now_ns, Ordering::Release);
        self.unlock_slice();
        drop(own);
        self.wake_waiters();
        Ok(())
    }

    /// How many turns of this participant were taken over by others because it exceeded its deadline.
    pub fn takeovers_total(&self) -> u64 {
        // Counts the turn that it has now, if that was.
        self.held();
        self.participant.slices.takeovers.load(Ordering::Acquire)
    }

    /// From whom the turn that was taken last was taken over. `None` when it was free.
    pub fn takeover(&self) -> Option<SliceTakeover> {
        self.participant.slices.last_slice().taken_over.clone()
    }

    /// Who has the turn now, this participant included. `None` when the turn is free, or that is not known.
    pub fn holder(&self) -> Result<Option<SliceHolder>, LedgerError> {
        loop {
            let Some(held) = self.participant.files.active_slice()? else { return Ok(None) };
            let record = self.participant.files.record(held.peer.index);
            let name = record.name();
            // A name is of the life that its record names before and after.
            if record.peer() == held.peer {
                let overdue = held.overdue(since_boot_ns());
                return Ok(Some(SliceHolder { peer: held.peer, name, overdue }));
            }
        }
    }

    /// How long the hand-over of the turn that was taken last took: from its release by another participant, or from the
    /// own ticket if that was drawn later, to its taking here. `None` when the holder before was this participant, died or was
    /// overtaken.
    pub fn handover(&self) -> Option<Duration> {
        let ns = self.participant.slices.last_handover_ns.load(Ordering::Acquire);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// As [`TurnLine::handover`], before the next epoch is in force; 0 = there was none.
    pub(super) fn handover_ns(&self) -> u64 {
        let seat = self.participant;
        let in_force = self.current_epoch();
        let released = |record: &Record<'_>| in_force != 0 && record.get(word::RELEASED_EPOCH) == in_force;
        let before = record::all(&seat.files.words).find(released);
        match before.filter(|record| record.index != seat.index()) {
            Some(record) => {
                let begun_ns =
                    record.get(word::RELEASED_AT).max(seat.slices.requested_ns.load(Ordering::Relaxed));
                since_boot_ns().saturating_sub(begun_ns).max(1)
            }
            None => 0,
        }
    }

    /// Sleeps until somebody else waits for the turn that this participant has (`true`), the turn is given up or taken over, or
    /// `limit` is over.
    pub fn wait_for_waiter(&self, limit: Duration) -> Result<bool, LedgerError> {
        let deadline = Instant::now() + limit;
        loop {
            // Read first: a bell that rings after a vain look is not slept through.
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

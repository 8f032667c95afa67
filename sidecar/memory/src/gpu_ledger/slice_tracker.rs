//! What one process records about time slices: the current one, and its own.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_policy::peers::Peer;

use super::observed_duration::ObservedDuration;

/// A time slice that was taken over from a holder that exceeded its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceTakeover {
    /// Name of the previous holder.
    pub from: String,
    /// Time since its deadline.
    pub overdue: Duration,
}

/// The current time slice as its holder's record describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveSlice {
    pub peer: Peer,
    pub epoch: u64,
    /// Nanoseconds of the boot-time clock; 0 = none.
    pub deadline_ns: u64,
}

impl ActiveSlice {
    pub(super) fn is_overdue(&self, now_ns: u64) -> bool {
        self.deadline_ns != 0 && now_ns > self.deadline_ns
    }

    pub(super) fn overdue(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(if self.is_overdue(now_ns) { now_ns - self.deadline_ns } else { 0 })
    }
}

/// What one process records about its own time slices.
#[derive(Debug, Default)]
pub(super) struct SliceTracker {
    /// Epoch of the time slice that it holds; 0 = none. Changes only under `last_slice`.
    pub(super) held_epoch: AtomicU64,
    /// Epoch of its last time slice.
    pub(super) epoch: AtomicU64,
    /// Time of its last release, nanoseconds of the boot-time clock.
    pub(super) released_ns: AtomicU64,
    /// Time when it drew its last ticket, nanoseconds of the boot-time clock.
    pub(super) requested_ns: AtomicU64,
    /// Duration of the last handover to this participant, nanoseconds; 0 = none.
    pub(super) last_handover_ns: AtomicU64,
    /// Number of its time slices that others took over.
    pub(super) takeovers: AtomicU64,
    last_slice: Mutex<LastSlice>,
    /// Participants that it skipped and has not reported yet.
    skipped: Mutex<Vec<String>>,
    /// How long it has observed an overdue time slice, and one that is available although other waiters are
    /// next.
    overdue_watch: Mutex<ObservedDuration>,
    idle_watch: Mutex<ObservedDuration>,
}

/// The time slice that was taken last.
#[derive(Debug, Default)]
pub(super) struct LastSlice {
    pub(super) taken_over: Option<SliceTakeover>,
    /// Another participant took it over, and `release` has not reported this yet.
    pub(super) lost: bool,
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

/// A panic under one of these mutexes leaves a consistent value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

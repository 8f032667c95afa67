//! Counts time slices that this tenant took over from holders past their deadline, and tenants that it skipped in the
//! queue.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sluice_memory::gpu_ledger::SliceTakeover;
use sluice_wire::state::{Skip, Takeover, TimeSliceState};

use crate::clock::{unix_ms, whole_ms};

/// Takeovers and skips: the number and the last of each.
#[derive(Debug, Default)]
pub struct Takeovers(Mutex<TakeoverCounts>);

#[derive(Clone, Debug, Default)]
struct TakeoverCounts {
    takeovers: u64,
    last_takeover: Option<Takeover>,
    skips: u64,
    last_skip: Option<Skip>,
}

impl Takeovers {
    /// Records a takeover of the time slice.
    pub fn record_takeover(&self, taken: SliceTakeover) {
        let (at_unix_ms, overdue_ms) = (unix_ms(SystemTime::now()), whole_ms(taken.overdue));
        tracing::warn!(from = taken.from, overdue_ms, "took over the time slice of a peer past its deadline");
        let mut counted = self.lock_counts();
        counted.takeovers += 1;
        counted.last_takeover = Some(Takeover { from: taken.from, at_unix_ms, overdue_ms });
    }

    /// Records a skip: the tenant `of`, `namespace/name`, was first in the queue and did not take the time slice.
    pub fn record_skip(&self, of: String) {
        tracing::warn!(
            of,
            "skipped a peer that was first in the time-slice queue and did not take its time slice"
        );
        let mut counted = self.lock_counts();
        counted.skips += 1;
        counted.last_skip = Some(Skip { of, at_unix_ms: unix_ms(SystemTime::now()) });
    }

    /// Adds the counts since the start to `slice`.
    pub fn fill(&self, slice: TimeSliceState) -> TimeSliceState {
        let TakeoverCounts { takeovers, last_takeover, skips, last_skip } = self.lock_counts().clone();
        TimeSliceState { takeovers_total: takeovers, last_takeover, skips_total: skips, last_skip, ..slice }
    }

    fn lock_counts(&self) -> std::sync::MutexGuard<'_, TakeoverCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

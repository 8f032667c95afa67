//! Events: points in a stream's work, with the time at which the stream reached them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::code;
use crate::capture::CapturedEvent;

/// One record of an event. Each recording creates a new one, so that waits for the old one are not delayed.
#[derive(Default)]
pub struct RecordedEvent {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

/// The last record of an event.
#[derive(Clone)]
pub enum LastRecord {
    /// By a stream.
    Recorded(Arc<RecordedEvent>),
    /// By a stream under capture: nothing reaches it.
    Captured(CapturedEvent),
}

/// An event: its last record, if any.
#[derive(Default)]
pub struct Event {
    last: Mutex<Option<LastRecord>>,
}

impl Event {
    /// Creates a new record.
    pub fn renew(&self) -> Arc<RecordedEvent> {
        let mark = Arc::new(RecordedEvent::default());
        *locked(&self.last) = Some(LastRecord::Recorded(Arc::clone(&mark)));
        mark
    }

    /// Records the event inside a capture.
    pub fn capture(&self, captured: CapturedEvent) {
        *locked(&self.last) = Some(LastRecord::Captured(captured));
    }

    /// Returns the last record.
    pub fn last(&self) -> Option<LastRecord> {
        locked(&self.last).clone()
    }

    /// Returns the last record by a stream.
    ///
    /// # Errors
    /// `CAPTURED_EVENT` if the event was last recorded inside a capture.
    pub fn mark(&self) -> Result<Option<Arc<RecordedEvent>>, u32> {
        match self.last() {
            None => Ok(None),
            Some(LastRecord::Recorded(mark)) => Ok(Some(mark)),
            Some(LastRecord::Captured(_)) => Err(code::CAPTURED_EVENT),
        }
    }
}

impl RecordedEvent {
    /// Marks the record as reached now.
    pub fn reach(&self) {
        *locked(&self.reached) = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Returns the time at which the record was reached.
    pub fn time(&self) -> Option<Instant> {
        *locked(&self.reached)
    }

    /// Waits until the record is reached or `given_up` returns `true`.
    pub fn wait(&self, given_up: impl Fn() -> bool) {
        let mut reached = locked(&self.reached);
        while reached.is_none() && !given_up() {
            let waited = self.changed.wait_timeout(reached, Duration::from_millis(1));
            reached = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

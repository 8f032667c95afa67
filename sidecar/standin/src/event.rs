//! Events: points in a stream's work, with the time at which the stream reached them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One record of an event. Each recording creates a new one, so that waits for the old one are not delayed.
#[derive(Default)]
pub struct RecordedEvent {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

/// An event: its last record, if any.
#[derive(Default)]
pub struct Event {
    last: Mutex<Option<Arc<RecordedEvent>>>,
}

impl Event {
    /// Creates a new record.
    pub fn renew(&self) -> Arc<RecordedEvent> {
        let mark = Arc::new(RecordedEvent::default());
        *locked(&self.last) = Some(Arc::clone(&mark));
        mark
    }

    /// Returns the last record.
    pub fn mark(&self) -> Option<Arc<RecordedEvent>> {
        locked(&self.last).clone()
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

//! Events: points in the work of a stream, with the time at which they were reached.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One record of an event. Recording again makes a new one, so that who waits for the old one is not held up.
#[derive(Default)]
pub struct RecordedEvent {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

/// An event: its last record, if it has one.
#[derive(Default)]
pub struct Event {
    last: Mutex<Option<Arc<RecordedEvent>>>,
}

impl Event {
    /// A new record.
    pub fn renew(&self) -> Arc<RecordedEvent> {
        let mark = Arc::new(RecordedEvent::default());
        *locked(&self.last) = Some(Arc::clone(&mark));
        mark
    }

    /// The last record.
    pub fn mark(&self) -> Option<Arc<RecordedEvent>> {
        locked(&self.last).clone()
    }
}

impl RecordedEvent {
    /// The stream has come here.
    pub fn reach(&self) {
        *locked(&self.reached) = Some(Instant::now());
        self.changed.notify_all();
    }

    /// When it was reached.
    pub fn time(&self) -> Option<Instant> {
        *locked(&self.reached)
    }

    /// Waits until it is reached or `given_up` says so.
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

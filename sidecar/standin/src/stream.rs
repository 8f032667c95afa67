//! Streams: work in order, each on its own thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::operation::Operation;

/// State that a context shares with its streams.
#[derive(Default)]
pub struct ContextState {
    /// The first fault of any work; later calls fail with it.
    pub fault: AtomicU32,
    /// Whether the context is destroyed, so that waits end.
    pub is_closed: AtomicBool,
}

/// A stream.
pub struct Stream {
    shared: Arc<ContextState>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    busy: bool,
    closed: bool,
}

impl Stream {
    /// Creates a stream and starts its thread.
    pub fn start(shared: Arc<ContextState>) -> Arc<Self> {
        let stream = Arc::new(Self { shared, queue: Mutex::default(), changed: Condvar::new() });
        let worker = Arc::clone(&stream);
        thread::spawn(move || worker.work());
        stream
    }

    /// Queues work.
    pub fn push(&self, operation: Operation) {
        self.extend([operation]);
    }

    /// Queues several operations without other work between them.
    pub fn extend(&self, operations: impl IntoIterator<Item = Operation>) {
        self.locked().waiting.extend(operations);
        self.changed.notify_all();
    }

    /// Whether all work is done.
    pub fn is_idle(&self) -> bool {
        let queue = self.locked();
        queue.waiting.is_empty() && !queue.busy
    }

    /// Waits until all work is done.
    pub fn drain(&self) {
        let mut queue = self.locked();
        while !queue.waiting.is_empty() || queue.busy {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the stream after its queued work.
    pub fn close(&self) {
        self.locked().closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        let given_up = || self.shared.is_closed.load(Ordering::Acquire);
        while let Some(operation) = self.next() {
            let faulty = self.shared.fault.load(Ordering::Acquire) != 0;
            // After a fault no work runs, but events must still be reached so that waits for them end.
            if faulty && !matches!(operation, Operation::Record(_)) {
                continue;
            }
            if let Err(fault) = operation.run(&given_up) {
                let _ = self.shared.fault.compare_exchange(0, fault, Ordering::AcqRel, Ordering::Acquire);
            }
        }
    }

    /// Marks the previous operation as done and returns the next one. Returns `None` after the end of the stream.
    fn next(&self) -> Option<Operation> {
        let mut queue = self.locked();
        queue.busy = false;
        self.changed.notify_all();
        loop {
            if let Some(operation) = queue.waiting.pop_front() {
                queue.busy = true;
                return Some(operation);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

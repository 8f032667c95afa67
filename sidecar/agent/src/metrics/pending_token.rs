//! The token that an open answer awaits: what tells [`Metrics`] of writes, and of tokens that do not come.

use std::sync::Arc;
use std::time::Instant;

use super::Metrics;
use super::objectives::StreamEnd;

/// Held by an answer from the arrival of its request until it ends. Dropped, nothing is awaited any more; a token that is
/// overdue then stays a miss.
#[derive(Debug)]
pub struct PendingToken {
    metrics: Arc<Metrics>,
    key: usize,
    /// What was said last: everything that had come is written.
    is_buffer_empty: bool,
    end: StreamEnd,
}

impl PendingToken {
    pub(super) fn new(metrics: Arc<Metrics>, key: usize) -> Self {
        PendingToken { metrics, key, is_buffer_empty: false, end: StreamEnd::Closed }
    }

    /// `count` tokens are written together, now.
    pub fn on_written(&mut self, count: u32) {
        self.is_buffer_empty = false;
        self.metrics.on_written(self.key, Instant::now(), count);
    }

    /// The client would read, and nothing is there to be written. Cheap to say again.
    pub fn on_buffer_empty(&mut self) {
        if !std::mem::replace(&mut self.is_buffer_empty, true) {
            self.metrics.recent().objectives.on_buffer_empty(self.key);
        }
    }

    /// The server fails the answer: the token never comes.
    pub fn fail(mut self) {
        self.end = StreamEnd::Failed;
    }
}

impl Drop for PendingToken {
    fn drop(&mut self) {
        self.metrics.recent().objectives.end(self.key, Instant::now(), self.end);
    }
}

//! The token that an open answer awaits: what tells [`Metrics`] of writes, and of tokens that do not come.

use std::sync::Arc;
use std::time::Instant;

use super::Metrics;
use super::objectives::End;

/// Held by an answer from the arrival of its request until it ends. Dropped, nothing is awaited any more; a token that is
/// overdue then stays a miss.
#[derive(Debug)]
pub struct AwaitedToken {
    metrics: Arc<Metrics>,
    key: usize,
    /// What was said last: everything that had come is written.
    nothing_there: bool,
    end: End,
}

impl AwaitedToken {
    pub(super) fn new(metrics: Arc<Metrics>, key: usize) -> Self {
        AwaitedToken { metrics, key, nothing_there: false, end: End::Gone }
    }

    /// `count` tokens are written together, now.
    pub fn written(&mut self, count: u32) {
        self.nothing_there = false;
        self.metrics.written(self.key, Instant::now(), count);
    }

    /// The client would read, and nothing is there to be written. Cheap to say again.
    pub fn nothing_there(&mut self) {
        if !std::mem::replace(&mut self.nothing_there, true) {
            self.metrics.recent().objectives.nothing_there(self.key);
        }
    }

    /// The server fails the answer: the token never comes.
    pub fn failed(mut self) {
        self.end = End::Failed;
    }
}

impl Drop for AwaitedToken {
    fn drop(&mut self) {
        self.metrics.recent().objectives.end(self.key, Instant::now(), self.end);
    }
}

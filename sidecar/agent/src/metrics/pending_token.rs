//! The token that an open response awaits. Reports writes and missing tokens to [`Metrics`].

use std::sync::Arc;
use std::time::Instant;

use super::Metrics;
use super::objectives::StreamEnd;

/// Held by a response from the arrival of its request until its end. When it is dropped, no token is awaited any more,
/// and a token that is overdue then stays a miss.
#[derive(Debug)]
pub struct PendingToken {
    metrics: Arc<Metrics>,
    key: usize,
    /// Whether the last report was that all tokens are written.
    is_buffer_empty: bool,
    end: StreamEnd,
}

impl Metrics {
    /// Tracks the first token of a response whose request arrived at `arrived`.
    pub fn track_first_token(self: &Arc<Self>, arrived: Instant) -> PendingToken {
        PendingToken::new(self.clone(), self.recent().objectives.track_first(arrived))
    }

    /// Tracks the next token of a response that was just written and whose first token is not measured.
    pub fn track_next_token(self: &Arc<Self>) -> PendingToken {
        PendingToken::new(self.clone(), self.recent().objectives.track_next(Instant::now()))
    }
}

impl PendingToken {
    pub(super) fn new(metrics: Arc<Metrics>, key: usize) -> Self {
        PendingToken { metrics, key, is_buffer_empty: false, end: StreamEnd::Closed }
    }

    /// Records `count` tokens that are written together now.
    pub fn on_written(&mut self, count: u32) {
        self.is_buffer_empty = false;
        self.metrics.on_written(self.key, Instant::now(), count);
    }

    /// Records that the client waits and no token is ready. Repeated calls are cheap.
    pub fn on_buffer_empty(&mut self) {
        if !std::mem::replace(&mut self.is_buffer_empty, true) {
            self.metrics.recent().objectives.on_buffer_empty(self.key);
        }
    }

    /// Records that the server fails the response, so the token never arrives.
    pub fn fail(mut self) {
        self.end = StreamEnd::Failed;
    }
}

impl Drop for PendingToken {
    fn drop(&mut self) {
        self.metrics.recent().objectives.end(self.key, Instant::now(), self.end);
    }
}

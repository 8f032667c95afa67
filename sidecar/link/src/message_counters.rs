//! Counts the messages of a link.

use std::sync::atomic::{AtomicU64, Ordering};

/// Messages of one link since its handshake. A message in several packets counts once.
#[derive(Debug, Default)]
pub(crate) struct MessageCounters {
    sent: AtomicU64,
    received: AtomicU64,
}

impl MessageCounters {
    /// Counts a message to the engine.
    pub(crate) fn on_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message from the engine.
    pub(crate) fn on_received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the messages of both directions.
    pub(crate) fn total(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed)
    }
}

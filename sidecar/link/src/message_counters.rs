//! What a link has carried.

use std::sync::atomic::{AtomicU64, Ordering};

/// Messages of one link since its handshake. What is cut into packets for its size is one message.
#[derive(Debug, Default)]
pub(crate) struct MessageCounters {
    sent: AtomicU64,
    received: AtomicU64,
}

impl MessageCounters {
    /// One more went to the engine.
    pub(crate) fn on_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// One more came from it.
    pub(crate) fn on_received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Both ways together.
    pub(crate) fn total(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed)
    }
}

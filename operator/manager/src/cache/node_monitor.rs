//! What the cluster cache keeps on nodes in addition to their objects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Node state in addition to the cache.
#[derive(Debug, Default)]
pub struct NodeMonitor {
    /// The last event of the node watch was data; `false` = the watch broke and has sent nothing since.
    pub(super) is_watch_healthy: AtomicBool,
    /// Missing nodes of claims: since when, seconds since 1970.
    missing_since: Mutex<BTreeMap<String, i64>>,
    /// When too many nodes were last not ready at once, seconds since 1970.
    pub(super) last_outage: AtomicI64,
}

impl NodeMonitor {
    /// Records whether the node watch sent data or broke at `now`, seconds since 1970. A new process does not know
    /// the state before: it assumes an outage, and every node's grace period restarts.
    pub fn set_watch_healthy(&self, anything: bool, now: i64) {
        self.is_watch_healthy.store(anything, Ordering::SeqCst);
        let _ = self.last_outage.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(super) fn missing_since(&self) -> MutexGuard<'_, BTreeMap<String, i64>> {
        self.missing_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

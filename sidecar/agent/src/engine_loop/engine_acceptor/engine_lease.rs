//! The lease that allows one engine at the link, from the hand-over of memory to the confirmed exit.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The lease and its waiters.
#[derive(Debug)]
pub struct EngineLease {
    timeout: Duration,
    state: Mutex<LeaseState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LeaseState {
    is_held: bool,
    /// Numbers of the waiters, newest last.
    waiting: Vec<u64>,
    next: u64,
}

impl LeaseState {
    fn is_next(&self, number: u64) -> bool {
        !self.is_held && self.waiting.last() == Some(&number)
    }
}

impl EngineLease {
    /// Creates a free lease for which each waiter waits at most `patience`.
    pub fn new(patience: Duration) -> Self {
        EngineLease { timeout: patience, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for the lease until the timeout. The newest waiter gets it first: an engine that just restarted is more
    /// likely to work than a peer that has waited for long.
    pub fn acquire(&self) -> Option<LeaseGuard<'_>> {
        let mut line = self.state();
        let number = line.next;
        line.next += 1;
        line.waiting.push(number);
        let waited = self.changed.wait_timeout_while(line, self.timeout, |line| !line.is_next(number));
        let (mut line, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_acquired = line.is_next(number);
        line.waiting.retain(|other| *other != number);
        line.is_held |= is_acquired;
        // Another waiter may be next now.
        self.changed.notify_all();
        // Create the guard lazily: dropping an unneeded guard would free the lease of another waiter.
        is_acquired.then(|| LeaseGuard(self))
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds the lease and frees it when dropped.
#[derive(Debug)]
pub struct LeaseGuard<'a>(&'a EngineLease);

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        self.0.state().is_held = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// Waits until `waiting` threads wait for the lease.
    fn wait_until_queued(lease: &EngineLease, waiting: usize) {
        while lease.state().waiting.len() != waiting {
            std::thread::yield_now();
        }
    }

    #[test]
    fn newest_peer_acquires_first() {
        let lease = EngineLease::new(Duration::from_secs(60));
        let first = lease.acquire().unwrap();
        let (sender, order) = channel();
        std::thread::scope(|scope| {
            for (before, name) in ["old", "new"].into_iter().enumerate() {
                let (lease, sender) = (&lease, sender.clone());
                scope.spawn(move || {
                    let taken = lease.acquire();
                    sender.send((name, taken.is_some())).unwrap();
                });
                wait_until_queued(lease, before + 1);
            }
            drop(first);
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [("new", true), ("old", true)]);
    }

    #[test]
    fn timed_out_peer_leaves_the_queue() {
        let lease = EngineLease::new(Duration::from_millis(100));
        let first = lease.acquire().unwrap();
        let begun = Instant::now();
        assert!(lease.acquire().is_none());
        assert!(begun.elapsed() >= Duration::from_millis(100));
        drop(first);
        assert!(lease.acquire().is_some());
    }
}

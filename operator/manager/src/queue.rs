//! The queue of pools to reconcile: each is in progress at most once, however often it is enqueued.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sluice_common::back_off::BackOff;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cache::PoolKey;

/// Events within this time are handled together.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// First delay after a failure; each further failure doubles it up to [`MAX_BACKOFF`].
const BASE_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum delay, after failures and after a slow reconciliation, which mostly waits for the API server.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The queue.
#[derive(Debug, Default)]
pub struct WorkQueue {
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    due_at: HashMap<PoolKey, Instant>,
    running: HashSet<PoolKey>,
    /// Earliest next start, so that a slow pool does not occupy a worker all the time.
    not_before: HashMap<PoolKey, Instant>,
    back_offs: HashMap<PoolKey, BackOff>,
}

impl WorkQueue {
    /// Enqueues a pool with the default delay.
    pub fn add(&self, unit: &PoolKey) {
        self.add_after(unit, DEBOUNCE);
    }

    /// Enqueues a pool with `delay`; an earlier entry stays.
    pub fn add_after(&self, unit: &PoolKey, delay: Duration) {
        let at = Instant::now() + delay;
        let mut inner = self.lock();
        let due = inner.due_at.entry(unit.clone()).or_insert(at);
        *due = at.min(*due);
        drop(inner);
        self.wake.notify_one();
    }

    pub fn len(&self) -> usize {
        self.lock().due_at.len()
    }

    /// Returns the next due pool. It is not returned again before [`WorkQueue::done`].
    pub async fn next(&self) -> PoolKey {
        loop {
            let wait = match self.try_pop() {
                Ok(unit) => return unit,
                Err(wait) => wait,
            };
            // A permit is stored while no worker waits, so no notification is missed.
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(wait) => {}
            }
        }
    }

    /// Returns a due pool, or the time at which the first is due.
    fn try_pop(&self) -> Result<PoolKey, Option<Instant>> {
        let mut inner = self.lock();
        let at = |inner: &Inner, unit: &PoolKey, due: Instant| {
            due.max(inner.not_before.get(unit).copied().unwrap_or(due))
        };
        let free = inner.due_at.iter().filter(|(unit, _)| !inner.running.contains(*unit));
        let first = free.map(|(unit, due)| (at(&inner, unit, *due), unit)).min_by_key(|(at, _)| *at);
        let (at, unit) = first.map(|(at, unit)| (at, unit.clone())).ok_or(None)?;
        if at > Instant::now() {
            return Err(Some(at));
        }
        inner.due_at.remove(&unit);
        inner.running.insert(unit.clone());
        let now = Instant::now();
        inner.not_before.retain(|_, at| now < *at);
        drop(inner);
        // Others may be due as well, and one permit wakes one worker.
        self.wake.notify_one();
        Ok(unit)
    }

    /// Marks `unit` as reconciled, after `took`. After a failure it is enqueued with backoff.
    pub fn done(&self, unit: &PoolKey, took: Duration, failed: bool) {
        let mut inner = self.lock();
        inner.running.remove(unit);
        inner.not_before.insert(unit.clone(), Instant::now() + took.saturating_mul(2).min(MAX_BACKOFF));
        if failed {
            let back_off = inner.back_offs.entry(unit.clone());
            let back_off = back_off.or_insert(BackOff::new(BASE_BACKOFF, MAX_BACKOFF));
            let at = Instant::now() + back_off.next_delay();
            let due = inner.due_at.entry(unit.clone()).or_insert(at);
            *due = at.min(*due);
        } else {
            inner.back_offs.remove(unit);
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// Drops the state of a removed pool.
    pub fn forget(&self, unit: &PoolKey) {
        let mut inner = self.lock();
        inner.back_offs.remove(unit);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_key(pool: &str) -> PoolKey {
        PoolKey { namespace: "ns".into(), pool: pool.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn duplicate_adds_are_coalesced() {
        let queue = WorkQueue::default();
        queue.add(&pool_key("a"));
        queue.add(&pool_key("a"));
        assert_eq!(queue.next().await, pool_key("a"));
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_processed_by_one_worker_at_a_time() {
        let queue = WorkQueue::default();
        queue.add(&pool_key("a"));
        let first = queue.next().await;
        queue.add(&first);
        queue.add_after(&pool_key("b"), Duration::from_secs(9));
        // `a` is due, but is not returned before it is done.
        assert_eq!(queue.next().await, pool_key("b"));
        queue.done(&first, Duration::ZERO, false);
        assert_eq!(queue.next().await, pool_key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_success_resets_backoff() {
        let queue = WorkQueue::default();
        let mut waited = Vec::new();
        queue.add(&pool_key("a"));
        for failed in [true, true, true, false] {
            let began = Instant::now();
            let a = queue.next().await;
            waited.push(began.elapsed().as_millis());
            queue.done(&a, Duration::ZERO, failed);
        }
        assert_eq!(waited, [100, 500, 1000, 2000]);
        queue.add(&pool_key("a"));
        let a = queue.next().await;
        queue.done(&a, Duration::ZERO, true);
        let began = Instant::now();
        queue.next().await;
        assert_eq!(began.elapsed().as_millis(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn long_reconcile_delays_next_by_at_most_a_minute() {
        let queue = WorkQueue::default();
        queue.add(&pool_key("a"));
        let a = queue.next().await;
        for (took, pause) in [(3, 6), (3600, 60)] {
            queue.done(&a, Duration::from_secs(took), false);
            queue.add(&a);
            let began = Instant::now();
            queue.next().await;
            assert_eq!(began.elapsed().as_secs(), pause);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn forgotten_key_leaves_no_state() {
        let queue = WorkQueue::default();
        queue.add(&pool_key("a"));
        let gone = queue.next().await;
        queue.forget(&gone);
        queue.done(&gone, Duration::from_secs(1), false);
        tokio::time::sleep(Duration::from_secs(3)).await;
        queue.add(&pool_key("b"));
        queue.next().await;
        let inner = queue.lock();
        assert!(
            inner.due_at.is_empty() && inner.not_before.is_empty() && inner.back_offs.is_empty(),
            "{inner:?}"
        );
    }
}

//! Which pools are to be looked at, and when: each at most once at a time, however often it was asked for.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::world::Unit;

/// What comes in shortly after each other is looked at together.
const SETTLE: Duration = Duration::from_millis(100);
/// First delay after a failure, doubled with every further one up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);
/// Longest delay, after failures and after a look that took long: most of that time it may have waited for the API server.
const LONGEST: Duration = Duration::from_secs(60);

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    due: HashMap<Unit, Instant>,
    running: HashSet<Unit>,
    /// Nobody is looked at again so soon that looking is all that is done.
    not_before: HashMap<Unit, Instant>,
    failures: HashMap<Unit, u32>,
}

impl Queue {
    /// Asks for a look soon.
    pub fn add(&self, unit: &Unit) {
        self.add_after(unit, SETTLE);
    }

    /// Asks for a look after `delay`; an earlier one stays.
    pub fn add_after(&self, unit: &Unit, delay: Duration) {
        let at = Instant::now() + delay;
        let mut inner = self.lock();
        let due = inner.due.entry(unit.clone()).or_insert(at);
        *due = at.min(*due);
        drop(inner);
        self.wake.notify_one();
    }

    /// Units that wait.
    pub fn len(&self) -> usize {
        self.lock().due.len()
    }

    /// The next unit whose time has come. It is not given out again before it is [`Queue::done`].
    pub async fn next(&self) -> Unit {
        loop {
            let wait = match self.take() {
                Ok(unit) => return unit,
                Err(wait) => wait,
            };
            // A permit is kept for who is not waiting yet, so nothing added since then is missed.
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(wait) => {}
            }
        }
    }

    /// A unit that is due, or when the first will be.
    fn take(&self) -> Result<Unit, Option<Instant>> {
        let mut inner = self.lock();
        let at = |inner: &Inner, unit: &Unit, due: Instant| {
            due.max(inner.not_before.get(unit).copied().unwrap_or(due))
        };
        let free = inner.due.iter().filter(|(unit, _)| !inner.running.contains(*unit));
        let first = free.map(|(unit, due)| (at(&inner, unit, *due), unit)).min_by_key(|(at, _)| *at);
        let (at, unit) = first.map(|(at, unit)| (at, unit.clone())).ok_or(None)?;
        if at > Instant::now() {
            return Err(Some(at));
        }
        inner.due.remove(&unit);
        inner.running.insert(unit.clone());
        let now = Instant::now();
        inner.not_before.retain(|_, at| now < *at);
        drop(inner);
        // Others may be due as well, and one permit wakes one worker.
        self.wake.notify_one();
        Ok(unit)
    }

    /// `unit` has been looked at, in `took`. After a failure it is due again, the later the more often it failed.
    pub fn done(&self, unit: &Unit, took: Duration, failed: bool) {
        let mut inner = self.lock();
        inner.running.remove(unit);
        inner.not_before.insert(unit.clone(), Instant::now() + took.saturating_mul(2).min(LONGEST));
        if failed {
            let failures = inner.failures.entry(unit.clone()).or_insert(0);
            let delay = FIRST.saturating_mul(1 << (*failures).min(10)).min(LONGEST);
            *failures += 1;
            let at = Instant::now() + delay;
            let due = inner.due.entry(unit.clone()).or_insert(at);
            *due = at.min(*due);
        } else {
            inner.failures.remove(unit);
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// Forgets what is kept of a unit that is gone.
    pub fn forget(&self, unit: &Unit) {
        let mut inner = self.lock();
        inner.failures.remove(unit);
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

    fn unit(pool: &str) -> Unit {
        Unit { namespace: "ns".into(), pool: pool.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_twice_is_looked_at_once() {
        let queue = Queue::default();
        queue.add(&unit("a"));
        queue.add(&unit("a"));
        assert_eq!(queue.next().await, unit("a"));
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_is_with_one_worker_at_a_time() {
        let queue = Queue::default();
        queue.add(&unit("a"));
        let first = queue.next().await;
        queue.add(&first);
        queue.add_after(&unit("b"), Duration::from_secs(9));
        // `a` has been due for long, but is not given out before it is done.
        assert_eq!(queue.next().await, unit("b"));
        queue.done(&first, Duration::ZERO, false);
        assert_eq!(queue.next().await, unit("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_and_longer_and_success_forgets_them() {
        let queue = Queue::default();
        let mut waited = Vec::new();
        queue.add(&unit("a"));
        for failed in [true, true, true, false] {
            let began = Instant::now();
            let a = queue.next().await;
            waited.push(began.elapsed().as_millis());
            queue.done(&a, Duration::ZERO, failed);
        }
        assert_eq!(waited, [100, 500, 1000, 2000]);
        queue.add(&unit("a"));
        let a = queue.next().await;
        queue.done(&a, Duration::ZERO, true);
        let began = Instant::now();
        queue.next().await;
        assert_eq!(began.elapsed().as_millis(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_look_is_not_followed_by_the_next_at_once_but_within_a_minute() {
        let queue = Queue::default();
        queue.add(&unit("a"));
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
    async fn nothing_is_kept_of_a_unit_that_is_gone() {
        let queue = Queue::default();
        queue.add(&unit("a"));
        let gone = queue.next().await;
        queue.forget(&gone);
        queue.done(&gone, Duration::from_secs(1), false);
        tokio::time::sleep(Duration::from_secs(3)).await;
        queue.add(&unit("b"));
        queue.next().await;
        let inner = queue.lock();
        assert!(
            inner.due.is_empty() && inner.not_before.is_empty() && inner.failures.is_empty(),
            "{inner:?}"
        );
    }
}

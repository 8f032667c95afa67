//! Heartbeat of the scheduler's thread, reported by `/live`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_memory::since_boot;

/// Time of the last loop iteration of the scheduler's thread. Clones share it.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Nanoseconds since boot. 0 if the thread has not started.
    last: Arc<AtomicU64>,
    limit: Duration,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Heartbeat::new(Heartbeat::LIMIT)
    }
}

impl Heartbeat {
    /// A thread without a beat for this long hangs. An idle thread beats once a second, a step of a policy takes
    /// milliseconds, and copies of memory run on other threads.
    pub const LIMIT: Duration = Duration::from_secs(20);

    /// Creates a heartbeat of a thread that has not started, because the tenant loads.
    pub fn new(limit: Duration) -> Heartbeat {
        Heartbeat { last: Arc::default(), limit }
    }

    /// Records an iteration of the thread's loop.
    pub fn beat(&self) {
        self.beat_at(since_boot());
    }

    fn beat_at(&self, now: Duration) {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.last.store(now.max(1), Ordering::Relaxed);
    }

    /// Returns the time since the last beat. `None` if the thread has not started.
    pub fn age(&self) -> Option<Duration> {
        self.age_at(since_boot())
    }

    fn age_at(&self, now: Duration) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed);
        (last > 0).then(|| now.saturating_sub(Duration::from_nanos(last)))
    }

    /// Returns the age of the last beat if it exceeds the limit. `None` if the thread makes progress or has not
    /// started.
    pub fn overdue(&self) -> Option<Duration> {
        self.overdue_at(since_boot())
    }

    fn overdue_at(&self, now: Duration) -> Option<Duration> {
        self.age_at(now).filter(|age| *age > self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_thread_is_overdue_and_unstarted_one_is_not() {
        let seconds = Duration::from_secs;
        let heartbeat = Heartbeat::default();
        assert_eq!(
            (heartbeat.age_at(seconds(900)), heartbeat.overdue_at(seconds(900))),
            (None, None),
            "loads"
        );
        heartbeat.beat_at(seconds(900));
        assert_eq!(heartbeat.age_at(seconds(903)), Some(seconds(3)));
        assert_eq!(heartbeat.overdue_at(seconds(920)), None, "20 s are allowed");
        assert_eq!(heartbeat.overdue_at(seconds(921)), Some(seconds(21)));
        heartbeat.clone().beat_at(seconds(921));
        assert_eq!(heartbeat.overdue_at(seconds(922)), None, "it goes on");
    }

    #[test]
    fn beat_at_time_zero_counts() {
        let heartbeat = Heartbeat::default();
        heartbeat.beat_at(Duration::ZERO);
        assert_eq!(heartbeat.age_at(Duration::from_nanos(1)), Some(Duration::ZERO));
    }
}

//! Measures how long a process has made no progress through its own fault. Sidecar and supervisor watch each other with
//! it.
//!
//! Silent time is the sum of the checks' intervals. Each interval is capped, so a watcher that was itself stopped
//! blames no other process. Time in which the node was slow is subtracted: the process's waits for a CPU, throttling,
//! and memory and I/O pressure (PSI). At least a quarter of each interval counts, so that a hang on a slow node ends as
//! well.

mod node;

use std::time::{Duration, Instant};

pub use node::{NodeStallTimes, WatchedProcess};

/// Silent time after which the watcher reads the node's stall times. A normal step makes progress sooner.
const SAMPLE_AFTER: Duration = Duration::from_millis(200);
/// Least part of each check's interval that counts, permille.
const MIN_CHECK_PERMILLE: u32 = 250;

/// Silent time of one process.
#[derive(Debug)]
pub struct HangDetector {
    progress: u64,
    silent_time: Duration,
    last_check: Instant,
    max_check_interval: Duration,
    times: Option<NodeStallTimes>,
}

impl HangDetector {
    /// Starts at `now`. A check counts `longest_look` at most.
    pub fn new(now: Instant, progress: u64, longest_look: Duration) -> HangDetector {
        HangDetector {
            progress,
            silent_time: Duration::ZERO,
            last_check: now,
            max_check_interval: longest_look,
            times: None,
        }
    }

    /// Checks the process: `progress` changes whenever the process advances. Returns the silent time since the last
    /// progress.
    pub fn check(&mut self, now: Instant, progress: u64, process: &WatchedProcess) -> Duration {
        let ask = self.silent_time >= SAMPLE_AFTER;
        let times = ask.then(|| NodeStallTimes::read(process));
        self.account(now, progress, times)
    }

    /// Updates the silent time from stall times that were already read.
    fn account(&mut self, now: Instant, progress: u64, times: Option<NodeStallTimes>) -> Duration {
        let look = now.saturating_duration_since(self.last_check).min(self.max_check_interval);
        self.last_check = now;
        if progress != self.progress {
            (self.progress, self.silent_time, self.times) = (progress, Duration::ZERO, None);
            return Duration::ZERO;
        }
        let slow = match (&times, &self.times) {
            (Some(now), Some(before)) => now.stalled_since(before),
            _ => Duration::ZERO,
        };
        self.times = times;
        self.silent_time += look.saturating_sub(slow).max(look * MIN_CHECK_PERMILLE / 1000);
        self.silent_time
    }

    /// Returns the silent time as of the last check.
    pub fn silent_time(&self) -> Duration {
        self.silent_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Duration = Duration::from_millis(100);

    fn cpu_wait(waited_ms: u64) -> Option<NodeStallTimes> {
        Some(NodeStallTimes {
            cpu_waits: [(1, Duration::from_millis(waited_ms))].into(),
            ..NodeStallTimes::default()
        })
    }

    /// Checks every 100 ms, each time with the given progress and stall times. Returns the silent time, milliseconds.
    fn silent_time(looks: impl IntoIterator<Item = (u64, Option<NodeStallTimes>)>) -> u128 {
        let mut now = Instant::now();
        let mut silence = HangDetector::new(now, 0, CHECK);
        for (progress, times) in looks {
            now += CHECK;
            silence.account(now, progress, times);
        }
        silence.silent_time().as_millis()
    }

    #[test]
    fn silence_restarts_at_progress() {
        assert_eq!(silent_time([(0, None), (0, None), (0, None)]), 300);
        assert_eq!(silent_time([(0, None), (1, None), (1, None)]), 100);
    }

    #[test]
    fn stopped_watcher_counts_one_check() {
        let begun = Instant::now();
        let mut silence = HangDetector::new(begun, 0, CHECK);
        assert_eq!(silence.account(begun + Duration::from_secs(60), 0, None), CHECK);
    }

    #[test]
    fn node_stall_time_counts_a_quarter() {
        let half = [0, 50, 100].map(|waited| (0, cpu_wait(waited)));
        assert_eq!(silent_time(half), 100 + 50 + 50, "the first look knows of nothing before it");
        let all = [0, 100, 200, 300, 400].map(|waited| (0, cpu_wait(waited)));
        assert_eq!(silent_time(all), 100 + 4 * 25);
        let more = [0, 9000, 18_000].map(|waited| (0, cpu_wait(waited)));
        assert_eq!(silent_time(more), 100 + 2 * 25);
    }
}

//! How long a process has made no progress through its own fault. Sidecar and supervisor watch each other by it.
//!
//! Time counts in looks. A look counts no more than its own length at most, so that a watcher that was itself stopped blames
//! no other process. Time in which the node was slow counts little: time that the process waited for a CPU, throttling, and
//! pressure of memory and I/O (PSI). At least a quarter of the time counts, so that a hang on a slow node ends as well.

mod node;

use std::time::{Duration, Instant};

pub use node::{NodeTimes, Watched};

/// From so much silence on a watcher asks the kernel how slow the node is. A step of every token ends before it.
const ASK_AFTER: Duration = Duration::from_millis(200);
/// Of each look at least this part counts, permille.
const LEAST_PERMILLE: u32 = 250;

/// Time without progress of one piece of work.
#[derive(Debug)]
pub struct Silence {
    progress: u64,
    counted: Duration,
    looked: Instant,
    longest_look: Duration,
    times: Option<NodeTimes>,
}

impl Silence {
    /// Begins at `now`. A look counts `longest_look` at most.
    pub fn new(now: Instant, progress: u64, longest_look: Duration) -> Silence {
        Silence { progress, counted: Duration::ZERO, looked: now, longest_look, times: None }
    }

    /// Looks at the process: `progress` changes whenever it gets on. Returns the time that counts since it last did.
    pub fn look(&mut self, now: Instant, progress: u64, process: &Watched) -> Duration {
        let ask = self.counted >= ASK_AFTER;
        let times = ask.then(|| NodeTimes::read(process));
        self.take(now, progress, times)
    }

    /// The part of a look that reads no file.
    fn take(&mut self, now: Instant, progress: u64, times: Option<NodeTimes>) -> Duration {
        let look = now.saturating_duration_since(self.looked).min(self.longest_look);
        self.looked = now;
        if progress != self.progress {
            (self.progress, self.counted, self.times) = (progress, Duration::ZERO, None);
            return Duration::ZERO;
        }
        let slow = match (&times, &self.times) {
            (Some(now), Some(before)) => now.slow_since(before),
            _ => Duration::ZERO,
        };
        self.times = times;
        self.counted += look.saturating_sub(slow).max(look * LEAST_PERMILLE / 1000);
        self.counted
    }

    /// The time that counts, as of the last look.
    pub fn counted(&self) -> Duration {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(100);

    fn cpu_wait(waited_ms: u64) -> Option<NodeTimes> {
        Some(NodeTimes { cpu_waits: [(1, Duration::from_millis(waited_ms))].into(), ..NodeTimes::default() })
    }

    /// Looks every 100 ms, each with what the node has told by then. Returns what counts, milliseconds.
    fn counted(looks: impl IntoIterator<Item = (u64, Option<NodeTimes>)>) -> u128 {
        let mut now = Instant::now();
        let mut silence = Silence::new(now, 0, LOOK);
        for (progress, times) in looks {
            now += LOOK;
            silence.take(now, progress, times);
        }
        silence.counted().as_millis()
    }

    #[test]
    fn silence_counts_from_the_last_progress_on() {
        assert_eq!(counted([(0, None), (0, None), (0, None)]), 300);
        assert_eq!(counted([(0, None), (1, None), (1, None)]), 100);
    }

    #[test]
    fn a_watcher_that_was_stopped_counts_one_look() {
        let begun = Instant::now();
        let mut silence = Silence::new(begun, 0, LOOK);
        assert_eq!(silence.take(begun + Duration::from_secs(60), 0, None), LOOK);
    }

    #[test]
    fn time_in_which_the_node_was_slow_counts_a_quarter_at_most_and_at_least() {
        let half = [0, 50, 100].map(|waited| (0, cpu_wait(waited)));
        assert_eq!(counted(half), 100 + 50 + 50, "the first look knows of nothing before it");
        let all = [0, 100, 200, 300, 400].map(|waited| (0, cpu_wait(waited)));
        assert_eq!(counted(all), 100 + 4 * 25);
        let more = [0, 9000, 18_000].map(|waited| (0, cpu_wait(waited)));
        assert_eq!(counted(more), 100 + 2 * 25);
    }
}

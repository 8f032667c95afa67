//! How slow the node was meanwhile: what a test may allow beyond a bound, since deadlines leave that time out.

use std::time::Duration;

/// From one moment on.
#[derive(Clone, Copy, Debug)]
pub struct Slowness {
    stalled: Duration,
}

impl Slowness {
    /// From now on.
    pub fn start() -> Slowness {
        Slowness { stalled: stalled() }
    }

    /// `bound`, and the time for which some process of the node waited for a CPU since, at most `bound` again: however slow the
    /// node is, a fault that doubles the time shows.
    pub fn allows(&self, bound: Duration) -> Duration {
        bound + stalled().saturating_sub(self.stalled).min(bound)
    }
}

/// Time for which some process of the node waited for a CPU so far.
fn stalled() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total =
        text.lines().next().and_then(|line| line.rsplit_once("total=")).map_or("0", |(_, total)| total);
    Duration::from_micros(total.trim().parse().expect("the kernel writes a number"))
}

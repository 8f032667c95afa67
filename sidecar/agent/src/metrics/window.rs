//! Shares over a sliding window: how many of the tokens of the last minute were in time.

use std::time::{Duration, Instant};

/// The window slides in this many steps.
const PARTS: usize = 60;

/// Counts that are forgotten once they leave the window.
#[derive(Debug)]
pub struct Window {
    good: [u64; PARTS],
    all: [u64; PARTS],
    turn: u128,
    origin: Instant,
    part: Duration,
}

impl Window {
    /// Empty, over `length`, at least a second.
    pub fn new(now: Instant, length: Duration) -> Self {
        let part = length.max(Duration::from_secs(1)) / PARTS as u32;
        Window { good: [0; PARTS], all: [0; PARTS], turn: 0, origin: now, part }
    }

    /// `good` of `all` were.
    pub fn record(&mut self, now: Instant, good: u64, all: u64) {
        self.slide(now);
        let part = (self.turn % PARTS as u128) as usize;
        self.good[part] += good;
        self.all[part] += all;
    }

    /// The share, rounded down, with `bad` more that have not been recorded; `None` = there was none.
    pub fn permille(&mut self, now: Instant, bad: u64) -> Option<u32> {
        self.slide(now);
        let (good, all): (u64, u64) = (self.good.iter().sum(), self.all.iter().sum());
        (good * 1000).checked_div(all + bad).and_then(|share| u32::try_from(share).ok())
    }

    fn slide(&mut self, now: Instant) {
        let turn = now.saturating_duration_since(self.origin).as_nanos() / self.part.as_nanos();
        let stale = turn.saturating_sub(self.turn).min(PARTS as u128);
        for i in 0..stale {
            let part = ((turn - i) % PARTS as u128) as usize;
            (self.good[part], self.all[part]) = (0, 0);
        }
        self.turn = self.turn.max(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_over_the_window_only() {
        let start = Instant::now();
        let mut window = Window::new(start, Duration::from_secs(10));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(window.permille(at(0), 0), None);
        window.record(at(0), 0, 3);
        window.record(at(5), 1, 1);
        assert_eq!(window.permille(at(9), 0), Some(250));
        assert_eq!(window.permille(at(11), 0), Some(1000));
        assert_eq!(window.permille(at(16), 0), None);
        assert_eq!(window.permille(at(16), 1), Some(0));
    }

    #[test]
    fn rounding_never_makes_a_miss_disappear() {
        let now = Instant::now();
        let mut window = Window::new(now, Duration::from_secs(60));
        window.record(now, 99_999, 100_000);
        assert_eq!(window.permille(now, 0), Some(999));
    }
}

//! Token counts over a sliding window, such as the tokens of the last minute that were in time.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use sluice_wire::state::TokenCounts;

/// Number of steps in which the window slides.
const SLOTS: usize = 60;

/// Tokens of an objective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens in time.
    pub in_time: u64,
    /// All tokens, and the causes of misses.
    pub counts: TokenCounts,
}

impl Tokens {
    /// Returns `count` tokens in time.
    pub fn in_time(count: u64) -> Tokens {
        Tokens { in_time: count, counts: TokenCounts { tokens: count, ..TokenCounts::default() } }
    }

    /// Returns one missed token. `given_up`: it was never written. `asleep`: its client waited while the tenant slept
    /// by command.
    pub fn missed(given_up: bool, asleep: bool) -> Tokens {
        let counts = TokenCounts { tokens: 1, given_up: given_up.into(), asleep: asleep.into() };
        Tokens { in_time: 0, counts }
    }

    /// Returns the share in time, permille, rounded down. `None` if there are no tokens.
    pub fn permille(&self) -> Option<u32> {
        (self.in_time * 1000).checked_div(self.counts.tokens).and_then(|share| u32::try_from(share).ok())
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, more: Tokens) {
        self.in_time += more.in_time;
        self.counts.tokens += more.counts.tokens;
        self.counts.given_up += more.counts.given_up;
        self.counts.asleep += more.counts.asleep;
    }
}

/// Counts that expire when they leave the window.
#[derive(Debug)]
pub struct Window {
    slots: [Tokens; SLOTS],
    slot_index: u128,
    origin: Instant,
    slot_width: Duration,
}

impl Window {
    /// Creates an empty window of `length`, at least one second.
    pub fn new(now: Instant, length: Duration) -> Self {
        let part = length.max(Duration::from_secs(1)) / SLOTS as u32;
        Window { slots: [Tokens::default(); SLOTS], slot_index: 0, origin: now, slot_width: part }
    }

    /// Records tokens.
    pub fn record(&mut self, now: Instant, tokens: Tokens) {
        self.slide(now);
        self.slots[(self.slot_index % SLOTS as u128) as usize] += tokens;
    }

    /// Returns the sum of the window.
    pub fn sum(&mut self, now: Instant) -> Tokens {
        self.slide(now);
        let mut sum = Tokens::default();
        self.slots.iter().for_each(|part| sum += *part);
        sum
    }

    fn slide(&mut self, now: Instant) {
        let current_slot = now.saturating_duration_since(self.origin).as_nanos() / self.slot_width.as_nanos();
        let stale = current_slot.saturating_sub(self.slot_index).min(SLOTS as u128);
        for i in 0..stale {
            let part = ((current_slot - i) % SLOTS as u128) as usize;
            self.slots[part] = Tokens::default();
        }
        self.slot_index = self.slot_index.max(current_slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attainment_covers_only_the_window() {
        let start = Instant::now();
        let mut window = Window::new(start, Duration::from_secs(10));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(window.sum(at(0)).permille(), None);
        (0..3).for_each(|nth| window.record(at(0), Tokens::missed(nth > 0, nth > 1)));
        window.record(at(5), Tokens::in_time(1));
        let sum = window.sum(at(9));
        assert_eq!(sum.permille(), Some(250));
        assert_eq!(sum.counts, TokenCounts { tokens: 4, given_up: 2, asleep: 1 });
        assert_eq!(window.sum(at(11)), Tokens::in_time(1));
        assert_eq!(window.sum(at(16)), Tokens::default());
    }

    #[test]
    fn rounding_never_makes_a_miss_disappear() {
        let mut tokens = Tokens::in_time(99_999);
        tokens += Tokens::missed(false, false);
        assert_eq!(tokens.permille(), Some(999));
    }
}

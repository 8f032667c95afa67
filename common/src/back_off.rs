//! Exponential back-off: each delay is twice the one before, up to a maximum.

use core::time::Duration;

/// The delays of one retry loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackOff {
    first: Duration,
    longest: Duration,
    delay: Duration,
}

impl BackOff {
    /// Starts with the delay `first`. Delays double up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> BackOff {
        BackOff { first, longest, delay: first }
    }

    /// Returns the current delay.
    pub const fn delay(&self) -> Duration {
        self.delay
    }

    /// Doubles the current delay, up to the maximum.
    pub fn double(&mut self) {
        self.delay = self.delay.saturating_mul(2).min(self.longest);
    }

    /// Returns the current delay and doubles it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.double();
        delay
    }

    /// Returns to the first delay.
    pub const fn reset(&mut self) {
        self.delay = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_until_a_reset() {
        let mut back_off = BackOff::new(Duration::from_millis(50), Duration::from_millis(300));
        let delays = [(); 5].map(|()| back_off.next_delay().as_millis());
        assert_eq!(delays, [50, 100, 200, 300, 300]);
        back_off.reset();
        assert_eq!(back_off.delay(), Duration::from_millis(50));
        back_off.double();
        assert_eq!(back_off.next_delay(), Duration::from_millis(100));
    }
}

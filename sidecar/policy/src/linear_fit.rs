//! Fits a line through pairs of samples, weighted towards newer ones, in integers: the growth of one quantity with
//! another.

/// Inverse weight of a new pair. 64: a batch changes about as often.
const WEIGHT: i128 = 64;
/// Bits after the binary point.
const FRACTION_BITS: u32 = 8;
/// Inverse of the minimum spread of x, relative to its mean, from which the slope is defined.
const MIN_SPREAD: i128 = 16;

/// Averages of x and y, and their covariance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearFit {
    /// Scaled by 2^`FRACTION_BITS`.
    x: i128,
    y: i128,
    /// Scaled twice.
    xx: i128,
    xy: i128,
    samples: bool,
    /// The last known slope.
    per_x: u64,
}

impl LinearFit {
    /// Adds a pair.
    pub fn observe(&mut self, x: u64, y: u64) {
        let scaled = |value: u64| i128::from(value.min(1 << 48)) << FRACTION_BITS;
        let (x, y) = (scaled(x), scaled(y));
        if !core::mem::replace(&mut self.samples, true) {
            (self.x, self.y) = (x, y);
            return;
        }
        let (dx, dy) = (x - self.x, y - self.y);
        let older = |spread: i128, product: i128| (spread + product / WEIGHT) * (WEIGHT - 1) / WEIGHT;
        (self.xx, self.xy) = (older(self.xx, dx * dx), older(self.xy, dx * dy));
        self.x += dx / WEIGHT;
        self.y += dy / WEIGHT;
        self.observe_ratio();
    }

    fn observe_ratio(&mut self) {
        let min_spread = self.x / MIN_SPREAD;
        if self.x > 0 && self.xx > min_spread * min_spread {
            let max_slope = (self.y / self.x).max(0);
            self.per_x = ((self.xy + self.xx / 2) / self.xx).clamp(0, max_slope) as u64;
        }
    }

    /// Returns the slope, between 0 and the ratio of the averages of y and x; 0 until x has varied.
    pub fn per_x(&self) -> u64 {
        self.per_x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a fit of y = 1000 + 7 x, over x that rises and falls.
    fn line(ends: u64) -> LinearFit {
        let mut slope = LinearFit::default();
        for step in 0..ends {
            let x = 500 + (step * 37) % 400;
            slope.observe(x, 1000 + 7 * x);
        }
        slope
    }

    #[test]
    fn a_line_is_found() {
        assert_eq!(line(200).per_x(), 7);
    }

    #[test]
    fn constant_x_gives_no_slope() {
        let mut slope = LinearFit::default();
        (0..100).for_each(|step| slope.observe(500, 1000 + step));
        assert_eq!(slope.per_x(), 0);
    }

    #[test]
    fn slope_is_kept_while_x_is_constant() {
        let mut slope = line(200);
        (0..2000).for_each(|_| slope.observe(700, 1000 + 7 * 700));
        assert_eq!(slope.per_x(), 7);
    }

    #[test]
    fn fit_is_monotonic_and_bounded() {
        let mut falling = LinearFit::default();
        (0..100).for_each(|step| falling.observe(100 + step % 50, 1000 - step % 50));
        assert_eq!(falling.per_x(), 0);
        let mut steep = LinearFit::default();
        (0..100).for_each(|step| steep.observe(100 + step % 50, 10_000 * (step % 50)));
        assert!((1..=10_000).contains(&steep.per_x()), "{}", steep.per_x());
        assert!(steep.per_x() * 100 <= 10_000 * 50, "{}", steep.per_x());
    }
}

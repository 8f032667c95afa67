//! An exponentially weighted moving average in integers, the same on every machine (OrbitFlow 3.4
//! recalibrates its profile with one, without a weight in the text).

/// Bits after the binary point.
const FRACTION_BITS: u32 = 24;

/// Default weight of a new sample, permille.
pub const DEFAULT_WEIGHT_PERMILLE: u32 = 125;

/// The average of a sequence of samples, weighted towards newer ones. Empty until the first sample, which it then
/// equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ewma {
    /// Average x 2^FRACTION_BITS.
    scaled: Option<u128>,
    weight_permille: u32,
}

impl Ewma {
    /// An empty average.
    ///
    /// # Panics
    /// If the weight is not in 1..=1000.
    pub const fn new(weight_permille: u32) -> Ewma {
        assert!(weight_permille >= 1 && weight_permille <= 1000, "a weight is 1 to 1000 permille");
        Ewma { scaled: None, weight_permille }
    }

    /// Adds a sample: average = average x (1 - weight) + sample x weight, rounded to the nearest fraction.
    pub fn observe(&mut self, sample: u64) {
        let sample = u128::from(sample) << FRACTION_BITS;
        let weight = u128::from(self.weight_permille);
        self.scaled = Some(match self.scaled {
            None => sample,
            Some(average) => (average * (1000 - weight) + sample * weight + 500) / 1000,
        });
    }

    /// Returns the average, rounded to the nearest unit; `None` before the first sample.
    pub fn value(&self) -> Option<u64> {
        self.scaled.map(|scaled| ((scaled + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS) as u64)
    }
}

impl Default for Ewma {
    fn default() -> Self {
        Ewma::new(DEFAULT_WEIGHT_PERMILLE)
    }
}

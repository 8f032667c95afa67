//! Summarizes many samples in a few numbers: a worker takes thousands, more than a message can hold.

use serde::{Deserialize, Serialize};
use sluice_common::statistics::percentile_of_sorted;

use crate::statistics::Figure;

/// Summary of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleSpread {
    median: f64,
    min: f64,
    /// Upper bound of 99 % of the samples.
    p99: f64,
    max: f64,
    samples: usize,
}

impl SampleSpread {
    /// Summarizes these samples.
    ///
    /// # Panics
    /// As in [`Figure::of`].
    pub fn of(samples: &[f64]) -> SampleSpread {
        let Figure { median, min, max, .. } = Figure::of("", "", samples);
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let p99 = percentile_of_sorted(&sorted, 990).expect("a figure has a sample");
        SampleSpread { median, min, p99, max, samples: samples.len() }
    }

    /// Returns figures: median and extremes, and the 99th percentile.
    pub fn figures(self, name: &str, unit: &str) -> [Figure; 2] {
        let SampleSpread { median, min, p99, max, samples } = self;
        let whole = Figure { name: name.into(), unit: unit.into(), median, min, max, samples };
        [whole, Figure::single(format!("{name}, 99 % within"), unit, p99)]
    }
}

#[cfg(test)]
mod tests {
    use super::SampleSpread;

    #[test]
    fn spread_reports_median_extremes_and_p99() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let spread = SampleSpread::of(&samples);
        assert_eq!(spread, SampleSpread { median: 100.5, min: 1.0, p99: 198.0, max: 200.0, samples: 200 });
        let [whole, most] = spread.figures("x", "ms");
        assert_eq!((whole.median, whole.max, whole.samples), (100.5, 200.0, 200));
        assert_eq!((most.name.as_str(), most.median), ("x, 99 % within", 198.0));
        assert_eq!(SampleSpread::of(&[7.0]).figures("x", "ms")[1].median, 7.0);
    }
}

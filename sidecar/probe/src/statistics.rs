//! Statistics of samples.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use sluice_common::statistics::median;

/// A measurement and its spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name.
    pub name: String,
    /// Unit, such as "us".
    pub unit: String,
    /// The middle sample, or the mean of the two middle ones.
    pub median: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Number of samples.
    pub samples: usize,
}

impl Figure {
    /// Summarizes these samples.
    ///
    /// # Panics
    /// If there is no sample, or one is not finite.
    pub fn of(name: impl Into<String>, unit: &str, samples: &[f64]) -> Figure {
        let mut sorted = samples.to_vec();
        assert!(sorted.iter().all(|sample| sample.is_finite()), "samples are numbers");
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (sorted.first(), sorted.last());
        Figure {
            name: name.into(),
            unit: unit.into(),
            median: median(samples).expect("a figure has a sample"),
            min: *min.expect("a figure has a sample"),
            max: *max.expect("a figure has a sample"),
            samples: samples.len(),
        }
    }

    /// Returns a figure that was counted, or measured once.
    pub fn single(name: impl Into<String>, unit: &str, value: f64) -> Figure {
        Figure::of(name, unit, &[value])
    }
}

/// Runs `work` and adds its time in microseconds to `samples`.
pub fn timed<T, E>(samples: &mut Vec<f64>, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let start = Instant::now();
    let done = work()?;
    samples.push(start.elapsed().as_secs_f64() * 1e6);
    Ok(done)
}

/// Returns the median of these samples.
///
/// # Panics
/// As in [`Figure::of`].
pub fn median_of(samples: &[f64]) -> f64 {
    Figure::of("", "", samples).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_middle_and_its_ends() {
        let odd = Figure::of("x", "us", &[3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max, odd.samples), (2.0, 1.0, 3.0, 3));
        assert_eq!(Figure::of("x", "us", &[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Figure::single("x", "us", 7.0).median, 7.0);
    }

    #[test]
    #[should_panic(expected = "samples are numbers")]
    fn nan_is_refused() {
        Figure::of("x", "us", &[1.0, f64::NAN]);
    }
}

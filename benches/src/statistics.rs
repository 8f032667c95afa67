//! Medians and intervals of small samples.

use sluice_common::statistics::median;

/// A mean and its 95 % interval (Student's t).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Interval {
    /// Of the mean of `samples`; `None` for fewer than two.
    pub fn of_mean(samples: &[f64]) -> Option<Interval> {
        let count = samples.len() as f64;
        if samples.len() < 2 {
            return None;
        }
        let mean = samples.iter().sum::<f64>() / count;
        let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let half = student_975(count - 1.0) * (variance / count).sqrt();
        Some(Interval { mean, low: mean - half, high: mean + half })
    }
}

/// The median; NaN, which passes no verdict, where there is no sample.
pub fn middle(samples: &[f64]) -> f64 {
    median(samples).unwrap_or(f64::NAN)
}

/// Median and range as text.
pub fn cell(samples: &[f64], digits: usize) -> String {
    let low = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let high = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.digits$} ({low:.digits$} to {high:.digits$})", middle(samples))
}

/// The 97.5 % quantile of Student's t (Abramowitz and Stegun 26.7.5, four terms): to 1e-3 from 9 degrees of freedom on;
/// with fewer it is too small.
fn student_975(freedom: f64) -> f64 {
    let z = 1.959_963_984_540_054_f64;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
        (79.0 * z.powi(9) + 776.0 * z.powi(7) + 1482.0 * z.powi(5) - 1920.0 * z.powi(3) - 945.0 * z)
            / 92_160.0,
    ];
    terms.iter().rev().fold(0.0, |sum, term| (sum + term) / freedom) + z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_students_t_are_those_of_printed_tables() {
        for (freedom, expected) in [(9.0, 2.262), (19.0, 2.093), (29.0, 2.045), (59.0, 2.001), (120.0, 1.980)]
        {
            let found = student_975(freedom);
            assert!((found - expected).abs() < 1e-3, "{found} for {freedom}, the table has {expected}");
        }
    }

    #[test]
    fn an_interval_is_the_mean_and_t_standard_errors_to_each_side() {
        // 1 to 10: mean 5.5, standard deviation sqrt(55/6), t of 9 degrees 2.262.
        let samples: Vec<f64> = (1..=10).map(f64::from).collect();
        let found = Interval::of_mean(&samples).unwrap();
        let half = 2.262 * (55.0_f64 / 6.0).sqrt() / 10.0_f64.sqrt();
        assert_eq!(found.mean, 5.5);
        assert!(
            (found.low - (5.5 - half)).abs() < 1e-3 && (found.high - (5.5 + half)).abs() < 1e-3,
            "{found:?}"
        );
    }

    #[test]
    fn equal_samples_have_an_interval_of_no_width() {
        assert_eq!(Interval::of_mean(&[2.0; 30]), Some(Interval { mean: 2.0, low: 2.0, high: 2.0 }));
        assert_eq!(Interval::of_mean(&[2.0]), None);
    }

    #[test]
    fn a_cell_is_the_median_and_the_range() {
        assert_eq!(cell(&[3.0, 1.0, 2.0], 1), "2.0 (1.0 to 3.0)");
        assert!(middle(&[]).is_nan());
    }
}

//! Means over seeds, and their confidence intervals.

use std::fmt;

/// A 95 % confidence interval of a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub mean: f64,
    pub from: f64,
    pub to: f64,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.mean, self.from, self.to)
    }
}

/// The 97.5 % quantile of Student's distribution with 1, 2, ... degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Returns the mean; 0 if there are no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the interval of the mean of one value per seed, by Student's distribution; unbounded for fewer than two
/// values. Beyond 30 degrees of freedom it uses the value for 30, which is slightly too wide.
pub fn paired(values: &[f64]) -> Interval {
    let mean = mean(values);
    let Some(freedom) = values.len().checked_sub(1).filter(|freedom| *freedom > 0) else {
        return Interval { mean, from: f64::NEG_INFINITY, to: f64::INFINITY };
    };
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / freedom as f64 / values.len() as f64).sqrt();
    let reach = STUDENT[freedom.min(STUDENT.len()) - 1] * error;
    Interval { mean, from: mean - reach, to: mean + reach }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // Mean 3, standard deviation 1.5811, five values: 3 +- 2.776 * 1.5811 / sqrt 5.
        let interval = paired(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(interval.mean, 3.0);
        assert!((interval.from - 1.037).abs() < 0.001 && (interval.to - 4.963).abs() < 0.001, "{interval}");
    }

    #[test]
    fn single_value_has_no_interval() {
        assert_eq!(paired(&[2.0]).from, f64::NEG_INFINITY);
        assert_eq!(paired(&[2.0, 2.0]), Interval { mean: 2.0, from: 2.0, to: 2.0 });
    }
}

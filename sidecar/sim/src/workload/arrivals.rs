//! Arrival processes: a trace, Poisson, or gamma-distributed gaps.

use sluice_common::random::Rng;

use super::table::{Table, TraceRow};

/// A source of arrival times.
#[derive(Clone, Debug)]
pub enum ArrivalProcess {
    /// Arrivals of a trace, with its time scaled.
    Trace {
        /// Rows with times.
        table: Table,
        /// Mean requests per second; the trace's own if `None`.
        rate: Option<f64>,
    },
    /// Gaps with the given coefficient of variation: 1 is Poisson.
    Gamma {
        /// Requests per second.
        rate: f64,
        /// Standard deviation of the gaps divided by their mean.
        cv: f64,
    },
}

impl ArrivalProcess {
    /// Returns `count` arrivals of tenant `at` of `tenants`, which share the rate equally: from its own segment of a
    /// trace, or its own draws.
    pub fn segment(
        &self,
        count: usize,
        (at, tenants): (usize, usize),
        seed: u64,
    ) -> Vec<(u64, Option<TraceRow>)> {
        let part = 1.0 / tenants as f64;
        match self {
            ArrivalProcess::Trace { table, rate } => {
                let len = table.rows.len() / tenants;
                let own = Table { rows: table.rows[at * len..(at + 1) * len].to_vec() };
                trace_times(&own, Some(rate.unwrap_or(table.mean_rate()) * part), count)
            }
            ArrivalProcess::Gamma { rate, cv } => {
                gamma_times(rate * part, *cv, count, seed ^ (at as u64) << 32)
            }
        }
    }

    /// Returns the first `count` arrivals, nanoseconds after the start of the load, with the trace's row if there is
    /// one.
    pub fn times(&self, count: usize, seed: u64) -> Vec<(u64, Option<TraceRow>)> {
        match self {
            ArrivalProcess::Trace { table, rate } => trace_times(table, *rate, count),
            ArrivalProcess::Gamma { rate, cv } => gamma_times(*rate, *cv, count, seed),
        }
    }
}

fn trace_times(table: &Table, rate: Option<f64>, count: usize) -> Vec<(u64, Option<TraceRow>)> {
    let rows = table.rows[..table.rows.len().min(count)].to_vec();
    let begin = rows.first().and_then(|row| row.at_ns).unwrap_or(0);
    let used = Table { rows };
    let factor = rate.map_or(1.0, |rate| used.mean_rate() / rate);
    let after = |row: &TraceRow| (row.at_ns.unwrap_or(begin) - begin) as f64 * factor;
    used.rows.iter().map(|row| (after(row) as u64, Some(*row))).collect()
}

fn gamma_times(rate: f64, cv: f64, count: usize, seed: u64) -> Vec<(u64, Option<TraceRow>)> {
    let mut rng = Rng::new(seed ^ 0xa771);
    let shape = 1.0 / (cv * cv);
    let mut at_s = 0.0;
    let next = |_| {
        at_s += gamma(shape, &mut rng) / shape / rate;
        ((at_s * 1e9) as u64, None)
    };
    (0..count).map(next).collect()
}

/// Draws a uniform variate in (0, 1).
fn uniform(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// Draws a normal variate (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * uniform(rng).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(rng)).cos()
}

/// Draws a gamma variate of scale 1 (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000).
fn gamma(shape: f64, rng: &mut Rng) -> f64 {
    if shape < 1.0 {
        return gamma(shape + 1.0, rng) * uniform(rng).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && uniform(rng).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::TraceSplit;

    /// Returns the mean and the coefficient of variation of gaps.
    fn moments(rate: f64, cv: f64) -> (f64, f64) {
        let times = ArrivalProcess::Gamma { rate, cv }.times(20_000, 3);
        let mut gaps = Vec::new();
        times.iter().fold(0, |before, (at, _)| {
            gaps.push((at - before) as f64 / 1e9);
            *at
        });
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn gaps_have_configured_mean_and_variation() {
        for cv in [0.5, 1.0, 3.0] {
            let (mean, found) = moments(4.0, cv);
            assert!((mean * 4.0 - 1.0).abs() < 0.08, "cv {cv}: mean {mean}");
            assert!((found / cv - 1.0).abs() < 0.1, "cv {cv}: {found}");
        }
    }

    #[test]
    fn a_trace_keeps_its_shape_at_another_rate() {
        let text = "arrival_s,context_tokens,generated_tokens\n10,1,1\n11,1,1\n13,1,1\n100,1,1\n";
        let table = Table::parse("t.csv", text, TraceSplit::Shown).unwrap();
        let at = |rate| -> Vec<u64> {
            let arrivals = ArrivalProcess::Trace { table: table.clone(), rate };
            arrivals.times(9, 0).into_iter().map(|(at, _)| at / 1_000_000).collect()
        };
        assert_eq!(at(None), [0, 1000, 3000]);
        assert_eq!(at(Some(2.0)), [0, 500, 1500]);
    }
}

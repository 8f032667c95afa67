//! Repetitions in turns, and what is said of them.

use std::time::Instant;

/// Tokens per second of each repetition.
pub struct Samples(Vec<f64>);

impl Samples {
    /// Runs `work`, which handles `tokens` tokens, once unmeasured and then `repetitions` times.
    pub fn of(
        repetitions: usize,
        tokens: usize,
        mut work: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Samples> {
        work()?;
        (0..repetitions).map(|_| speed(tokens, &mut work)).collect::<anyhow::Result<_>>().map(Samples)
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        median(&self.0)
    }

    /// The slowest and the fastest.
    pub fn range(&self) -> (f64, f64) {
        range(&self.0)
    }
}

/// Two sides measured alternately.
pub struct Comparison {
    /// Sluice.
    pub sluice: Samples,
    /// candle.
    pub candle: Samples,
}

impl Comparison {
    /// Runs each side once unmeasured, then `repetitions` pairs; the side that begins changes from pair to pair.
    pub fn alternating(
        repetitions: usize,
        tokens: usize,
        mut sluice: impl FnMut() -> anyhow::Result<()>,
        mut candle: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Comparison> {
        sluice()?;
        candle()?;
        let mut samples = (Vec::new(), Vec::new());
        for repetition in 0..repetitions {
            if repetition % 2 == 0 {
                samples.0.push(speed(tokens, &mut sluice)?);
                samples.1.push(speed(tokens, &mut candle)?);
            } else {
                samples.1.push(speed(tokens, &mut candle)?);
                samples.0.push(speed(tokens, &mut sluice)?);
            }
        }
        Ok(Comparison { sluice: Samples(samples.0), candle: Samples(samples.1) })
    }

    /// Sluice's speed over candle's: the middle one of the pairs', which were measured within the same moments.
    pub fn ratio(&self) -> f64 {
        median(&self.ratios())
    }

    /// The smallest and the largest ratio of a pair.
    pub fn ratio_range(&self) -> (f64, f64) {
        range(&self.ratios())
    }

    fn ratios(&self) -> Vec<f64> {
        self.sluice.0.iter().zip(&self.candle.0).map(|(sluice, candle)| sluice / candle).collect()
    }
}

fn speed(tokens: usize, work: &mut impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(tokens as f64 / started.elapsed().as_secs_f64())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)))
}

//! [`Pairs`]: runs of the same load under two policies, by turns.

use sluice_probe::Error;
use sluice_probe::statistics::Figure;

use crate::served::{Calibration, LoadFigures, Policy};

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// What the clients saw.
    pub(super) figures: LoadFigures,
    /// Preempted requests.
    pub(super) preemptions: u64,
}

/// Runs under both policies. The runs of one index followed each other.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    recompute: Vec<Run>,
    oneiros: Vec<Run>,
}

/// A figure of a run: its name, its unit, and how it follows from the run.
type Column = (&'static str, &'static str, fn(&Run) -> f64);

const COLUMNS: [Column; 5] = [
    ("tokens/s", "tokens/s", |run| run.figures.tokens_per_s()),
    ("time to first token, p50", "ms", |run| run.figures.ttft_ms(500)),
    ("time to first token, p99", "ms", |run| run.figures.ttft_ms(990)),
    ("requests in the batch, most", "", |run| run.figures.most_running.into()),
    ("preemptions", "", |run| run.preemptions as f64),
];
/// The columns of which there is a ratio.
const RATIOS: usize = 3;

impl Pairs {
    pub(super) fn push(&mut self, policy: Policy, run: Run) {
        match policy {
            Policy::Recompute => self.recompute.push(run),
            Policy::Oneiros => self.oneiros.push(run),
        }
    }

    /// Returns the figures of both policies, and the ratios of the pairs.
    ///
    /// # Panics
    /// If there is no run.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let sides = [(Policy::Recompute, &self.recompute), (Policy::Oneiros, &self.oneiros)];
        let of_side = sides.iter().flat_map(|(policy, runs)| {
            COLUMNS.iter().map(move |(name, unit, value)| {
                let samples: Vec<f64> = runs.iter().map(value).collect();
                Figure::of(format!("{}: {name}", policy.name()), unit, &samples)
            })
        });
        let ratios = COLUMNS[..RATIOS].iter().map(|(name, _, value)| {
            let pairs = self.oneiros.iter().zip(&self.recompute);
            let ratios: Vec<f64> =
                pairs.map(|(oneiros, recompute)| value(oneiros) / value(recompute)).collect();
            Figure::of(format!("Oneiros to Recompute: {name}"), "", &ratios)
        });
        of_side.chain(ratios).collect()
    }

    /// Fails if the load did not exhaust KV under Recompute: then the runs say nothing. It has if a request was preempted,
    /// or fewer ran at a time than where memory is ample.
    pub(super) fn premise(&self, ample: &LoadFigures) -> Result<(), Error> {
        let is_short = |run: &Run| run.preemptions > 0 || run.figures.most_running < ample.most_running;
        match !self.recompute.is_empty() && self.recompute.iter().all(is_short) {
            true => Ok(()),
            false => Err(Error::Otherwise(
                "had KV for all requests under Recompute: the load was too small".into(),
            )),
        }
    }
}

/// Returns the figures of the load where memory is ample.
pub(super) fn ample(calibration: &Calibration) -> [Figure; 2] {
    let ample = &calibration.ample;
    [
        Figure::single("ample memory: tokens/s", "tokens/s", ample.tokens_per_s()),
        Figure::single("ample memory: time to first token, p50", "ms", ample.ttft_ms(500)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: f64, preemptions: u64) -> Run {
        Run {
            figures: LoadFigures { tokens: 100, seconds, ttft_ms: vec![seconds], most_running: 4 },
            preemptions,
        }
    }

    fn pairs(preemptions: u64) -> Pairs {
        let mut pairs = Pairs::default();
        for (recompute, oneiros) in [(4.0, 2.0), (6.0, 2.0), (5.0, 5.0)] {
            pairs.push(Policy::Recompute, run(recompute, preemptions));
            pairs.push(Policy::Oneiros, run(oneiros, 0));
        }
        pairs
    }

    #[test]
    fn a_ratio_is_that_of_runs_that_followed_each_other() {
        let figures = pairs(1).figures();
        let of = |name: &str| figures.iter().find(|figure| figure.name == name).expect("there is one");
        let ratio = of("Oneiros to Recompute: tokens/s");
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.0, 2.0, 3.0));
        assert_eq!(of("Recompute: tokens/s").median, 20.0);
        assert_eq!(of("Oneiros to Recompute: time to first token, p50").median, 0.5);
    }

    #[test]
    fn a_load_that_exhausts_nothing_is_no_comparison() {
        let ample = |most_running| LoadFigures { most_running, ..LoadFigures::default() };
        assert!(pairs(1).premise(&ample(4)).is_ok(), "requests were preempted");
        assert!(pairs(0).premise(&ample(5)).is_ok(), "one request waited");
        let error = pairs(0).premise(&ample(4)).expect_err("all ran at once").to_string();
        assert!(error.contains("the load was too small"), "{error}");
    }
}

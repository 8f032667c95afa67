//! The requests of a load. All are drawn from one seed before the first one is sent.

use std::time::Duration;

use sluice_common::random::Rng;

use super::args::BenchArgs;
use super::load::{sample_arrivals, sample_lengths};

/// One request to send.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchRequest {
    /// Arrival time after the start of the run.
    pub arrival: Duration,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Tokens to generate.
    pub max_tokens: u32,
}

/// Draws the requests of the load.
///
/// # Errors
/// The file cannot be read or lacks the columns.
pub fn generate_requests(args: &BenchArgs) -> anyhow::Result<Vec<BenchRequest>> {
    let mut rng = Rng::new(args.seed);
    let times = sample_arrivals(&args.arrivals, args.requests, &mut rng)?;
    let lengths = sample_lengths(&args.lengths, times.len(), &mut rng)?;
    let jobs = times.into_iter().zip(lengths).map(|(at, (prompt, output))| {
        let prompt = prompt.clamp(1, args.max_total.saturating_sub(1).max(1));
        let max_tokens = output.clamp(1, args.max_total.saturating_sub(prompt).max(1));
        let prompt = (0..prompt).map(|_| rng.below(u64::from(args.vocab)) as u32).collect();
        BenchRequest { arrival: Duration::from_secs_f64(at), prompt, max_tokens }
    });
    Ok(jobs.collect())
}

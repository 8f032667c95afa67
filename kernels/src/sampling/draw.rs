//! Greedy and random choice among the candidates that pass the filters.

use std::cmp::Ordering;

use super::{SamplingError, SamplingParams, unit_interval};
use crate::forward::LogitRow;

/// Candidates sorted at a time during top-p: most nuclei are far smaller than the vocabulary.
const NUCLEUS_STEP: usize = 256;

pub(super) fn choose(
    row: &mut LogitRow<'_>,
    params: &SamplingParams,
    position: u64,
) -> Result<u32, SamplingError> {
    let best = greedy(row.logits).ok_or(SamplingError::NoCandidate)?;
    if params.temperature == 0.0 {
        return Ok(best);
    }
    let weights = Weights::new(row.logits, best, params.temperature);
    let candidates = min_p(&weights, row.scratch, params.min_p);
    let candidates = top_k(&weights, candidates, params.top_k as usize);
    let candidates = top_p(&weights, candidates, params.top_p);
    Ok(draw(&weights, candidates, unit_interval(params.seed, position)))
}

/// Returns the token with the largest logit, the lowest id among equals. NaN is never chosen.
fn greedy(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.map_or(f32::NEG_INFINITY, |(_, largest)| largest) {
            best = Some((id as u32, logit));
        }
    }
    best.map(|(id, _)| id)
}

/// Unnormalized probabilities: the best token has weight 1.
struct Weights<'a> {
    logits: &'a [f32],
    largest: f64,
    temperature: f64,
}

impl<'a> Weights<'a> {
    fn new(logits: &'a [f32], best: u32, temperature: f32) -> Self {
        Weights { logits, largest: f64::from(logits[best as usize]), temperature: f64::from(temperature) }
    }

    fn of(&self, id: u32) -> f64 {
        let logit = self.logits[id as usize];
        // Also avoids NaN for an infinite best logit, whose difference with itself is not a number.
        if f64::from(logit) == self.largest {
            return 1.0;
        }
        ((f64::from(logit) - self.largest) / self.temperature).exp()
    }

    fn sum(&self, candidates: &[u32]) -> f64 {
        candidates.iter().map(|&id| self.of(id)).sum()
    }

    /// Most likely first, then by id: a total order without ties.
    fn order(&self, a: u32, b: u32) -> Ordering {
        self.logits[b as usize].total_cmp(&self.logits[a as usize]).then(a.cmp(&b))
    }
}

/// Returns the ids of all tokens with a positive weight of at least `min_p`, ascending.
fn min_p<'s>(weights: &Weights<'_>, scratch: &'s mut [u32], min_p: f32) -> &'s mut [u32] {
    let mut kept = 0;
    for id in 0..weights.logits.len() as u32 {
        let weight = weights.of(id);
        if weight > 0.0 && weight >= f64::from(min_p) {
            scratch[kept] = id;
            kept += 1;
        }
    }
    &mut scratch[..kept]
}

/// Returns the `k` most likely candidates in order; all of them, by id, if `k` is 0 or not below their number.
fn top_k<'s>(weights: &Weights<'_>, candidates: &'s mut [u32], k: usize) -> &'s mut [u32] {
    if k == 0 || k >= candidates.len() {
        return candidates;
    }
    sort_first(weights, candidates, k);
    &mut candidates[..k]
}

/// Returns the shortest run of most likely candidates whose share of the total reaches `p`; at least one.
fn top_p<'s>(weights: &Weights<'_>, candidates: &'s mut [u32], p: f32) -> &'s mut [u32] {
    if p >= 1.0 {
        return candidates;
    }
    let wanted = f64::from(p) * weights.sum(candidates);
    let (mut kept, mut sorted, mut mass) = (0, 0, 0.0);
    while kept < candidates.len() && (kept == 0 || mass < wanted) {
        if kept == sorted {
            let step = NUCLEUS_STEP.max(sorted).min(candidates.len() - sorted);
            sort_first(weights, &mut candidates[sorted..], step);
            sorted += step;
        }
        mass += weights.of(candidates[kept]);
        kept += 1;
    }
    &mut candidates[..kept]
}

/// Moves the `count` most likely candidates to the front, in order.
fn sort_first(weights: &Weights<'_>, candidates: &mut [u32], count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, |&a, &b| weights.order(a, b));
    }
    candidates[..count].sort_unstable_by(|&a, &b| weights.order(a, b));
}

/// Evaluates the inverse of the cumulative distribution at `unit`.
fn draw(weights: &Weights<'_>, candidates: &[u32], unit: f64) -> u32 {
    let mut left = unit * weights.sum(candidates);
    for &id in candidates {
        left -= weights.of(id);
        if left < 0.0 {
            return id;
        }
    }
    // Rounding may leave a small rest, which belongs to the last candidate.
    *candidates.last().expect("the best token is always a candidate")
}

//! Presence, frequency and repetition penalties over a token history.

use super::{History, SamplingParams};
use crate::forward::LogitRow;

/// Marks a token whose penalties are applied. No history is that long.
const DONE: u32 = u32::MAX;

/// Applies each token's penalties once. Uses only the scratch words of tokens in the history.
pub(super) fn apply(row: &mut LogitRow<'_>, params: &SamplingParams, history: History<'_>) {
    for &token in history.tokens {
        row.scratch[token as usize] = 0;
    }
    for &token in history.generated() {
        row.scratch[token as usize] += 1;
    }
    for &token in history.tokens {
        let count = std::mem::replace(&mut row.scratch[token as usize], DONE);
        if count != DONE {
            let logit = &mut row.logits[token as usize];
            *logit = penalised(*logit, count, params);
        }
    }
}

pub(super) fn penalised(logit: f32, generated: u32, params: &SamplingParams) -> f32 {
    let repeated =
        if logit > 0.0 { logit / params.repetition_penalty } else { logit * params.repetition_penalty };
    let presence = if generated > 0 { params.presence_penalty } else { 0.0 };
    repeated - params.frequency_penalty * generated as f32 - presence
}

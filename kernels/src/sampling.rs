//! Chooses a token from a row of logits. It is a pure function of the logits, the parameters and the token history, so
//! a restarted engine repeats it exactly.
//!
//! The order is vLLM's: log-probabilities of the raw logits; bias and bans; penalties; temperature; min-p; top-k; top-p
//! over the tokens that top-k keeps. Ties resolve to the lowest id. Only the result is allocated: the row's scratch (4
//! bytes per token of the vocabulary, counted in the activation cost) holds counts, then candidates.

mod draw;
mod logprobs;
mod params;
mod penalties;
mod random;
#[cfg(test)]
mod tests;

pub use logprobs::TokenLogprobs;
pub use params::{History, MAX_LOGPROBS, SamplingError, SamplingParams};
pub(crate) use random::bits as random_bits;
pub use random::unit_interval;

use crate::forward::LogitRow;
use params::check_ids;

/// The chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub token: u32,
    /// Present if requested.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses the token at position `history.tokens.len()`. Changes the row's logits in place.
///
/// Log-probabilities are the log-softmax of the *raw* logits, before bans, bias, penalties and temperature, as OpenAI
/// and vLLM report them.
pub fn sample(
    row: &mut LogitRow<'_>,
    params: &SamplingParams,
    history: History<'_>,
) -> Result<SampledToken, SamplingError> {
    params.check(row.logits.len())?;
    check_ids("the history", history.tokens, row.logits.len())?;
    let raw =
        params.logprobs.map(|top| logprobs::RawLogprobs::of(row.logits, top, changeable(params, history)));
    ban_and_bias(row.logits, params, history);
    if params.needs_counts() {
        penalties::apply(row, params, history);
    }
    let token = draw::choose(row, params, history.tokens.len() as u64)?;
    let logprobs = raw.map(|raw| raw.finish(token, row.logits[token as usize]));
    Ok(SampledToken { token, logprobs })
}

/// Returns the tokens whose logits bans, bias and penalties may change.
fn changeable<'a>(params: &'a SamplingParams, history: History<'a>) -> impl Iterator<Item = u32> + 'a {
    let biased = params.logit_bias.iter().map(|(token, _)| token);
    let penalised = if params.needs_counts() { history.tokens } else { &[] };
    let barred = params.banned_tokens.iter().chain(&params.stop_tokens);
    biased.chain(barred).chain(penalised).copied()
}

fn ban_and_bias(logits: &mut [f32], params: &SamplingParams, history: History<'_>) {
    for &(token, bias) in &params.logit_bias {
        logits[token as usize] += bias;
    }
    for &token in &params.banned_tokens {
        logits[token as usize] = f32::NEG_INFINITY;
    }
    if history.generated().len() < params.min_tokens as usize {
        for &token in &params.stop_tokens {
            logits[token as usize] = f32::NEG_INFINITY;
        }
    }
}

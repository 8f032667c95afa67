//! What a choice depends on: the parameters and the tokens before it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum of alternatives reported with a token.
pub const MAX_LOGPROBS: u8 = 20;

/// Parameters for choosing the next token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// 0 = greedy.
    pub temperature: f32,
    /// Nucleus: the smallest set whose probability reaches this value; 1 = off.
    pub top_p: f32,
    /// Number of most likely tokens to keep; 0 = off.
    pub top_k: u32,
    /// Tokens below this fraction of the largest probability are dropped; 0 = off.
    pub min_p: f32,
    /// Subtracted once from every token already generated.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the output.
    pub frequency_penalty: f32,
    /// Divides (positive) or multiplies (negative) logits of tokens in prompt and output; 1 = off.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen.
    pub banned_tokens: Vec<u32>,
    /// Tokens that are not chosen until `min_tokens` tokens are generated.
    pub stop_tokens: Vec<u32>,
    /// Tokens generated before a stop token may be chosen.
    pub min_tokens: u32,
    /// The random number is a function of the seed and the position.
    pub seed: u64,
    /// Number of alternatives reported with the token, up to [`MAX_LOGPROBS`]. `None` = no log-probabilities.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            banned_tokens: Vec::new(),
            stop_tokens: Vec::new(),
            min_tokens: 0,
            seed: 0,
            logprobs: None,
        }
    }
}

/// The tokens before the one to choose. Their number is its position.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt, then output.
    pub tokens: &'a [u32],
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
}

impl<'a> History<'a> {
    pub(super) fn generated(&self) -> &'a [u32] {
        &self.tokens[self.prompt_tokens.min(self.tokens.len())..]
    }
}

/// Why no token can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SamplingError {
    /// A parameter or the history names a token beyond the vocabulary.
    #[error("{field} has token {token}, but the vocabulary has {vocab} tokens")]
    TokenOutOfRange {
        /// Parameter that names the id.
        field: &'static str,
        /// The id.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// The parameter is outside its range.
    #[error("{0}")]
    Parameter(&'static str),
    /// Every token is banned, or no logit is a number.
    #[error("no token can be chosen: all are banned or their logits are not numbers")]
    NoCandidate,
}

impl SamplingParams {
    /// Whether the choice is the token of the largest raw logit, which a device can find by itself.
    pub fn takes_largest(&self) -> bool {
        let unchanged = self.logit_bias.is_empty()
            && self.banned_tokens.is_empty()
            && (self.min_tokens == 0 || self.stop_tokens.is_empty())
            && !self.needs_counts();
        self.temperature == 0.0 && self.logprobs.is_none() && unchanged
    }

    /// Rejects parameters outside their ranges and token ids beyond `vocab`.
    pub fn check(&self, vocab: usize) -> Result<(), SamplingError> {
        let rules = [
            (self.temperature >= 0.0 && self.temperature.is_finite(), "temperature must be finite and >= 0"),
            (self.top_p > 0.0 && self.top_p <= 1.0, "top_p must lie in (0, 1]"),
            ((0.0..=1.0).contains(&self.min_p), "min_p must lie in [0, 1]"),
            (self.presence_penalty.is_finite(), "presence_penalty must be finite"),
            (self.frequency_penalty.is_finite(), "frequency_penalty must be finite"),
            (
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "repetition_penalty must be finite and > 0",
            ),
            (self.logit_bias.iter().all(|(_, bias)| !bias.is_nan()), "logit_bias must be a number"),
            (self.logprobs.is_none_or(|n| n <= MAX_LOGPROBS), "logprobs must be at most 20"),
        ];
        if let Some((_, message)) = rules.iter().find(|(holds, _)| !holds) {
            return Err(SamplingError::Parameter(message));
        }
        check_ids("logit_bias", self.logit_bias.iter().map(|(token, _)| token), vocab)?;
        check_ids("banned_tokens", &self.banned_tokens, vocab)?;
        check_ids("stop_tokens", &self.stop_tokens, vocab)
    }

    pub(super) fn needs_counts(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }
}

pub(super) fn check_ids<'a>(
    field: &'static str,
    tokens: impl IntoIterator<Item = &'a u32>,
    vocab: usize,
) -> Result<(), SamplingError> {
    match tokens.into_iter().find(|token| **token as usize >= vocab) {
        Some(&token) => Err(SamplingError::TokenOutOfRange { field, token, vocab }),
        None => Ok(()),
    }
}

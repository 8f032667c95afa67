//! Sampling parameters. The engine is stateless: the choice of the next token depends only on these and on
//! the token history that the sidecar supplies.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Sampling parameters of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: f32,
    /// Nucleus sampling: probability that the smallest kept set of tokens reaches; 1 = off.
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 = off.
    pub top_k: u32,
    /// Minimum probability relative to the largest one; 0 = off.
    pub min_p: f32,
    /// Subtracted once from the logit of every token already generated.
    pub presence_penalty: f32,
    /// Subtracted from the logit for each time the token was generated.
    pub frequency_penalty: f32,
    /// Divides positive logits and multiplies negative ones, for tokens of prompt and output; 1 = off.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed; randomness depends only on it and the position.
    pub seed: u64,
    /// Tokens that end the sequence; suppressed while fewer than `min_tokens` were generated.
    pub stop_tokens: Vec<u32>,
    /// Number of tokens generated before a stop token may be chosen.
    pub min_tokens: u32,
    /// Whether stop tokens do not end the sequence.
    pub ignore_stop: bool,
    /// Number of most likely alternatives reported with each token, up to 20. `None` = no log-probabilities.
    pub logprobs: Option<u8>,
}

/// Hashes the bits of the floats.
impl Hash for Sampling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let floats = [
            self.temperature,
            self.top_p,
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
        ];
        floats.map(f32::to_bits).hash(state);
        bits(&self.logit_bias).hash(state);
        (self.top_k, self.seed, &self.stop_tokens, self.min_tokens, self.ignore_stop, self.logprobs)
            .hash(state);
    }
}

fn bits(pairs: &[(u32, f32)]) -> Vec<(u32, u32)> {
    pairs.iter().map(|(token, value)| (*token, value.to_bits())).collect()
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
            stop_tokens: Vec::new(),
            min_tokens: 0,
            ignore_stop: false,
            logprobs: None,
        }
    }
}

/// Sampling parameters shared by all steps of a sequence.
pub type SharedSampling = Arc<Sampling>;

/// Log-probabilities of one sampled token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Hashes the bits of the floats.
impl Hash for TokenLogprobs {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.chosen.to_bits(), bits(&self.top)).hash(state);
    }
}

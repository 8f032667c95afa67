//! Where each intermediate value of a step lies in the native engine's activation arena, and what that costs.
//!
//! The engine lays out its arena by it and states the cost in `Ready`; an inspection of a model that nobody has loaded yet
//! asks for the same cost. An engine of another kind states another one.
//!
//! One function lays it out; the cost is read off its layouts, and every row is padded to 64 bytes, so that the cost is
//! exact. What one layer hands to the next is there for every token of the step, everything else for the tokens of one
//! chunk. Values that never live at the same time share their place: Q, K, V and the attention's result with the MLP's.

use sluice_policy::geometry::{ActivationCost, StepShape};

use crate::model::ModelSpec;

/// f32 words of a vector register: rows are whole vectors.
pub const LANES: usize = 16;
/// Rows of weights that are widened together.
pub const PANEL_ROWS: usize = 32;

/// Words of a row: whole vectors, so that every row is aligned.
pub const fn padded(words: u32) -> usize {
    (words as usize).next_multiple_of(LANES)
}

/// f32 words of scratch that a product over `k` columns needs, for each thread.
pub const fn scratch_words(k: usize) -> usize {
    PANEL_ROWS * k.next_multiple_of(LANES)
}

/// f32 words from the arena's start, and words of a row, of each value of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One widened panel of weights for each thread; the second number is words of one.
    pub scratch: (usize, usize),
    /// Residual stream `[tokens]`.
    pub residual: (usize, usize),
    /// What a norm leaves `[chunk]`.
    pub normed: (usize, usize),
    /// Cosines and sines `[tokens]`.
    pub rope_angles: (usize, usize),
    /// Queries `[chunk]`.
    pub queries: (usize, usize),
    /// Keys before rounding `[chunk]`.
    pub keys: (usize, usize),
    /// Values before rounding `[chunk]`.
    pub values: (usize, usize),
    /// What attention leaves `[chunk]`.
    pub attention_output: (usize, usize),
    /// The MLP's inner values `[chunk]`; on the place of the four before.
    pub ffn_hidden: (usize, usize),
    /// What the final norm leaves `[logit rows]`.
    pub last_hidden: (usize, usize),
    /// Logits `[logit rows]`, not padded.
    pub logits: (usize, usize),
    /// Scratch of the sampling `[logit rows]`, not padded.
    pub sampling: (usize, usize),
    /// Words of it all.
    pub words: usize,
}

impl Layout {
    /// A step of `shape` that goes through the layers in chunks of `chunk_tokens` at most.
    pub fn new(spec: &ModelSpec, threads: usize, chunk_tokens: u32, shape: StepShape) -> Layout {
        let mut words = 0;
        let mut take = |rows: usize, row: usize| {
            let at = words;
            words += rows * row;
            (at, row)
        };
        let (tokens, rows) = (shape.tokens as usize, shape.logit_rows as usize);
        let chunk = tokens.min(chunk_tokens as usize);
        let (hidden, head) = (padded(spec.hidden), padded(spec.heads * spec.head_dim));
        let (kv, inner) = (padded(spec.kv_heads * spec.head_dim), padded(spec.intermediate));
        let longest = spec.hidden.max(spec.heads * spec.head_dim).max(spec.intermediate);
        let scratch = take(threads, scratch_words(longest as usize));
        let stream = take(tokens, hidden);
        let angles = take(tokens, padded(spec.head_dim));
        let normed = take(chunk, hidden);
        let (queries, keys) = (take(chunk, head), take(chunk, kv));
        let (values, attended) = (take(chunk, kv), take(chunk, head));
        // The MLP needs its rows when the four before are done with.
        take(chunk, inner.saturating_sub(2 * head + 2 * kv));
        let inner = (queries.0, inner);
        let last = take(rows, hidden);
        let (logits, sampling) = (take(rows, spec.vocab as usize), take(rows, spec.vocab as usize));
        let layout = Layout {
            scratch,
            residual: stream,
            normed,
            rope_angles: angles,
            queries,
            keys,
            values,
            attention_output: attended,
            ffn_hidden: inner,
            last_hidden: last,
            logits,
            sampling,
            words: 0,
        };
        Layout { words, ..layout }
    }

    /// Bytes of it all.
    pub fn bytes(&self) -> u64 {
        4 * self.words as u64
    }
}

/// What [`Layout::new`] takes, as a function of the shape: linear up to one chunk, and from there on less steep.
///
/// Activations by step shape of an engine of `threads` threads, whose steps go through each layer in chunks of at most
/// `chunk_tokens` tokens.
pub fn cost(spec: &ModelSpec, threads: usize, chunk_tokens: u32) -> ActivationCost {
    let bytes = |chunk_tokens, tokens, logit_rows| {
        let shape = StepShape { tokens, sequences: 1, logit_rows };
        Layout::new(spec, threads, chunk_tokens, shape).bytes()
    };
    let fixed_bytes = bytes(1, 0, 0);
    let stream_per_token_bytes = bytes(1, 2, 0) - bytes(1, 1, 0);
    ActivationCost {
        fixed_bytes,
        stream_per_token_bytes,
        chunk_per_token_bytes: bytes(1, 1, 0) - fixed_bytes - stream_per_token_bytes,
        chunk_tokens,
        // Nothing is held for a sequence.
        per_sequence_bytes: 0,
        per_logit_row_bytes: bytes(1, 0, 1) - fixed_bytes,
    }
}

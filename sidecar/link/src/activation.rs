//! Layout of a step's intermediate values in the native engine's activation arena, and its memory cost.
//!
//! The engine lays out its arena with [`Layout::new`] and reports the cost in `Ready`. The inspection of a model that
//! is not loaded uses the same function. Another kind of engine reports its own cost.
//!
//! The cost is computed from layouts and every row is padded to 64 bytes, so the cost is exact. The residual stream and
//! the rotary angles hold every token of the step, the other per-token values the tokens of one chunk. Values that are
//! never needed at the same time share memory: Q, K, V and the attention output with the MLP's inner values.

pub mod cuda;

use sluice_policy::geometry::{ActivationCost, StepShape};

use crate::model::ModelSpec;

/// f32 words of a vector register. Rows are padded to whole vectors.
pub const LANES: usize = 16;
/// Weight rows that are widened together.
pub const PANEL_ROWS: usize = 32;

/// Returns the words of a row, padded to whole vectors so that every row is aligned.
pub const fn padded(words: u32) -> usize {
    (words as usize).next_multiple_of(LANES)
}

/// Returns the f32 words of scratch that a product over `k` KV blocks needs per thread.
pub const fn scratch_words(k: usize) -> usize {
    PANEL_ROWS * k.next_multiple_of(LANES)
}

/// Offset from the arena's start and row length of each value of a step, in f32 words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One widened panel of weights per thread; the second number is the words of one panel.
    pub scratch: (usize, usize),
    /// Residual stream `[tokens]`.
    pub residual: (usize, usize),
    /// Output of a norm `[chunk]`.
    pub normed: (usize, usize),
    /// Cosines and sines `[tokens]`.
    pub rope_angles: (usize, usize),
    /// Queries `[chunk]`.
    pub queries: (usize, usize),
    /// Keys before rounding `[chunk]`.
    pub keys: (usize, usize),
    /// Values before rounding `[chunk]`.
    pub values: (usize, usize),
    /// Attention output `[chunk]`.
    pub attention_output: (usize, usize),
    /// The MLP's inner values `[chunk]`, in the memory of the four values before.
    pub ffn_hidden: (usize, usize),
    /// Output of the final norm `[logit rows]`.
    pub last_hidden: (usize, usize),
    /// Logits `[logit rows]`, not padded.
    pub logits: (usize, usize),
    /// Sampling scratch `[logit rows]`, not padded.
    pub sampling: (usize, usize),
    /// Words of the whole arena.
    pub words: usize,
}

impl Layout {
    /// Lays out a step of `shape` that passes through the layers in chunks of at most `chunk_tokens`.
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
        // The MLP reuses the four values before; this adds the words by which it is larger.
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

    /// Returns the bytes of the whole arena.
    pub fn bytes(&self) -> u64 {
        4 * self.words as u64
    }
}

/// Returns the bytes of [`Layout::new`] as a function of the step's shape: linear up to one chunk, less steep beyond.
///
/// The engine has `threads` threads, and its steps pass through each layer in chunks of at most `chunk_tokens` tokens.
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
        // No value has one row per sequence.
        per_sequence_bytes: 0,
        per_logit_row_bytes: bytes(1, 0, 1) - fixed_bytes,
    }
}

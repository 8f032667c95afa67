//! Where each intermediate value of a step lies in the activation arena, and what that costs.
//!
//! One function lays it out; the cost is read off three of its layouts, and every row is padded to 64 bytes, so that
//! the cost is exact. Values that never live at the same time share their place: Q, K, V and the attention's result
//! with the MLP's.

use sluice_link::model::ModelSpec;

use crate::simd::{LANES, matmul};

/// Bytes of activations as an exact linear function of a step's shape. The engine states it in `Hello`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivationCost {
    /// Bytes of a step of any shape.
    pub fixed_bytes: u64,
    /// Bytes more for each token of the step.
    pub per_token_bytes: u64,
    /// Bytes more for each sequence of the step.
    pub per_sequence_bytes: u64,
    /// Bytes more for each row of logits, the scratch of its sampling included.
    pub per_logit_row_bytes: u64,
}

/// What a step asks of the activation space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens over all sequences.
    pub tokens: usize,
    /// Sequences.
    pub sequences: usize,
    /// Rows for which logits are computed.
    pub logit_rows: usize,
}

impl ActivationCost {
    /// Bytes that a step of this shape needs.
    pub fn bytes(&self, shape: StepShape) -> u64 {
        self.fixed_bytes
            + self.per_token_bytes * shape.tokens as u64
            + self.per_sequence_bytes * shape.sequences as u64
            + self.per_logit_row_bytes * shape.logit_rows as u64
    }
}

/// Words of a row: whole vectors, so that every row is aligned.
pub(crate) const fn padded(words: u32) -> usize {
    (words as usize).next_multiple_of(LANES)
}

/// f32 words from the arena's start, and words of a row, of each value of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// One widened panel of weights for each thread; the second number is words of one.
    pub scratch: (usize, usize),
    /// Residual stream `[tokens]`.
    pub stream: (usize, usize),
    /// What a norm leaves `[tokens]`.
    pub normed: (usize, usize),
    /// Cosines and sines `[tokens]`.
    pub angles: (usize, usize),
    /// Queries `[tokens]`.
    pub queries: (usize, usize),
    /// Keys before rounding `[tokens]`.
    pub keys: (usize, usize),
    /// Values before rounding `[tokens]`.
    pub values: (usize, usize),
    /// What attention leaves `[tokens]`.
    pub attended: (usize, usize),
    /// The MLP's inner values `[tokens]`; on the place of the four before.
    pub inner: (usize, usize),
    /// What the final norm leaves `[logit rows]`.
    pub last: (usize, usize),
    /// Logits `[logit rows]`, not padded.
    pub logits: (usize, usize),
    /// Scratch of the sampling `[logit rows]`, not padded.
    pub sampling: (usize, usize),
    /// Words of it all.
    pub words: usize,
}

impl Layout {
    pub(crate) fn new(spec: &ModelSpec, threads: usize, shape: StepShape) -> Layout {
        let mut words = 0;
        let mut take = |rows: usize, row: usize| {
            let at = words;
            words += rows * row;
            (at, row)
        };
        let (tokens, rows) = (shape.tokens, shape.logit_rows);
        let (hidden, head) = (padded(spec.hidden), padded(spec.heads * spec.head_dim));
        let (kv, inner) = (padded(spec.kv_heads * spec.head_dim), padded(spec.intermediate));
        let longest = spec.hidden.max(spec.heads * spec.head_dim).max(spec.intermediate);
        let scratch = take(threads, matmul::scratch_words(longest as usize));
        let (stream, normed) = (take(tokens, hidden), take(tokens, hidden));
        let angles = take(tokens, padded(spec.head_dim));
        let (queries, keys) = (take(tokens, head), take(tokens, kv));
        let (values, attended) = (take(tokens, kv), take(tokens, head));
        // The MLP needs its rows when the four before are done with.
        take(tokens, inner.saturating_sub(2 * head + 2 * kv));
        let inner = (queries.0, inner);
        let last = take(rows, hidden);
        let (logits, sampling) = (take(rows, spec.vocab as usize), take(rows, spec.vocab as usize));
        let layout = Layout {
            scratch,
            stream,
            normed,
            angles,
            queries,
            keys,
            values,
            attended,
            inner,
            last,
            logits,
            sampling,
            words: 0,
        };
        Layout { words, ..layout }
    }

    pub(crate) fn bytes(&self) -> u64 {
        4 * self.words as u64
    }
}

impl ActivationCost {
    /// What [`Layout::new`] takes, as a linear function.
    pub(crate) fn of(spec: &ModelSpec, threads: usize) -> ActivationCost {
        let bytes = |tokens, sequences, logit_rows| {
            Layout::new(spec, threads, StepShape { tokens, sequences, logit_rows }).bytes()
        };
        let fixed_bytes = bytes(0, 0, 0);
        ActivationCost {
            fixed_bytes,
            per_token_bytes: bytes(1, 0, 0) - fixed_bytes,
            per_sequence_bytes: bytes(0, 1, 0) - fixed_bytes,
            per_logit_row_bytes: bytes(0, 0, 1) - fixed_bytes,
        }
    }
}

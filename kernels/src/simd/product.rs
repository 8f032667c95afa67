//! A matrix product: which rows of weights, which tokens, and what to do with each sum.

use std::ops::Range;

pub use sluice_link::activation::{PANEL_ROWS, scratch_words};

/// The operation on a sum (bias included).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// `output = sum`
    Store,
    /// `output += sum` (residual)
    Add,
    /// `output *= sum` (gated MLP)
    Multiply,
    /// `output = silu(sum)`
    Silu,
    /// `output = max(sum, 0)`
    Relu,
}

/// One thread's part of a matrix product.
///
/// Pointers must be valid for: `weights` `[all rows][k]`, `bias` `[all rows]`, `input` and `output` the tokens' rows of
/// `k` and `rows.end` words at their strides, `scratch` [`scratch_words`]`(k)` words. No other thread accesses the
/// output elements of `rows` x `tokens` or the scratch.
#[derive(Clone, Debug)]
pub struct Product<E> {
    /// Row-major `[rows][k]`.
    pub weights: *const E,
    /// One value per row.
    pub bias: Option<*const E>,
    /// Rows to compute.
    pub rows: Range<usize>,
    /// Columns of the weights.
    pub k: usize,
    /// Activations in the format of `E::Dot`, from each row's start on, and the f32 words from one token's row to the
    /// next.
    pub input: (*const f32, usize),
    /// Results, and the words from one token's row to the next.
    pub output: (*mut f32, usize),
    /// Tokens to compute.
    pub tokens: Range<usize>,
    /// Operation on each sum.
    pub epilogue: Epilogue,
    /// Space for one widened panel, or for the copy of a block of tokens (`amx`).
    pub scratch: *mut f32,
}

//! The largest logits of rows (`sampling.cu`).
//!
//! A logit and its token are one key of 64 bits: the logit's bits, made to order like numbers, above the complement of
//! the token. Key 0 is no candidate: NaN, minus infinity, or nothing left.

use super::Address;
use super::arguments::arguments;
use super::plan::{LaunchPlan, Module, ShapeError};

/// Largest `k` of a top-k.
pub const MAX_K: u32 = 64;

/// Tokens of a row that one block looks at for the largest logit: about two blocks per multiprocessor of an H100 for one
/// row of 262,144 logits.
pub use sluice_link::activation::cuda::ARGMAX_PART;

/// Keys that one block of a top-k sorts.
const SORTED: u32 = 2048;

arguments! {
    /// The largest key of each part of a row.
    ArgmaxParts {
        /// `[rows][vocabulary]`, f32.
        logits: Address,
        /// `[rows][parts]`, u64.
        keys: Address,
        /// Logits of a row.
        vocabulary: u32,
        /// Logits of a part; a multiple of 4.
        part: u32,
    }
}

arguments! {
    /// The token of a row's largest key.
    ArgmaxRows {
        /// `[rows][parts]`, u64.
        keys: Address,
        /// `[rows]`, u32: the token, or `u32::MAX` if no logit can be chosen.
        tokens: Address,
        /// Keys of a row.
        parts: u32,
        /// Zero.
        unused: u32,
    }
}

arguments! {
    /// The `k` largest keys of each part of a row, in falling order.
    TopK {
        /// `[rows][count]`, f32, or null.
        logits: Address,
        /// `[rows][count]`, u64, where there are no logits.
        keys: Address,
        /// `[rows][parts][k]`, u64.
        output: Address,
        /// Logits or keys of a row.
        count: u32,
        /// Keys of a part in the output.
        k: u32,
    }
}

/// Plans the two launches that find the tokens of `rows` rows of logits. `keys` has room for
/// [`argmax_keys`]`(vocabulary)` keys a row.
pub fn argmax(
    logits: Address,
    keys: Address,
    tokens: Address,
    vocabulary: u32,
    rows: u32,
) -> [LaunchPlan; 2] {
    let parts = argmax_keys(vocabulary);
    let first = ArgmaxParts { logits, keys, vocabulary, part: ARGMAX_PART };
    let second = ArgmaxRows { keys, tokens, parts, unused: 0 };
    [
        LaunchPlan::new((Module::Sampling, "sluice_argmax_parts"), [parts, rows, 1], 256, &first),
        LaunchPlan::new((Module::Sampling, "sluice_argmax_rows"), [rows, 1, 1], 256, &second),
    ]
}

/// Keys between the two launches of [`argmax`], a row.
pub fn argmax_keys(vocabulary: u32) -> u32 {
    vocabulary.div_ceil(ARGMAX_PART)
}

/// Plans the launches that find the `k` largest logits of each row. Each launch reads what the one before it has written;
/// results alternate between the two buffers of `keys`, each with room for [`top_k_keys`]`(vocabulary, k)` keys a row.
/// Returns the launches and the buffer that then has `[rows][k]` keys.
///
/// # Errors
/// If `k` is above [`MAX_K`].
pub fn top_k(
    logits: Address,
    keys: [Address; 2],
    (vocabulary, k): (u32, u32),
    rows: u32,
) -> Result<(Vec<LaunchPlan>, Address), ShapeError> {
    if k > MAX_K {
        return Err(ShapeError::TooLarge { what: "the k of a top-k", value: k, limit: MAX_K });
    }
    let mut step = TopK { logits, keys: 0, output: keys[0], count: vocabulary, k };
    let mut plans = Vec::new();
    loop {
        let parts = step.count.div_ceil(SORTED);
        plans.push(LaunchPlan::new((Module::Sampling, "sluice_top_k"), [parts, rows, 1], 256, &step));
        if parts == 1 {
            return Ok((plans, step.output));
        }
        let next = if step.output == keys[0] { keys[1] } else { keys[0] };
        step = TopK { logits: 0, keys: step.output, output: next, count: parts * k, k };
    }
}

/// Keys of a row in a buffer of [`top_k`].
pub fn top_k_keys(vocabulary: u32, k: u32) -> u32 {
    vocabulary.div_ceil(SORTED) * k
}

/// Returns the token and the logit of a key, or nothing for key 0.
pub fn candidate(key: u64) -> Option<(u32, f32)> {
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    (key != 0).then(|| (!(key as u32), f32::from_bits(bits)))
}

//! Layout of a step's values on a GPU, and its memory cost.
//!
//! Rows are contiguous, as the kernels read them, and each value starts at a multiple of [`ALIGNMENT`]. The cost is
//! therefore an upper bound: it charges one alignment for each value. Values that are never needed at the same time
//! share memory, as in the layout of the host.

use sluice_policy::geometry::{ActivationCost, StepShape};

use crate::model::{Family, ModelSpec};
use crate::vocabulary::BLOCK_TOKENS;

/// Alignment of each value, in bytes: what `cuMemAlloc` guarantees, and cuBLASLt is fastest with.
pub const ALIGNMENT: u64 = 256;
/// Workspace of cuBLASLt, in bytes, whether or not the engine uses it: what its documentation recommends for Hopper.
pub const WORKSPACE_BYTES: u64 = 32 << 20;
/// Positions of a split of attention. It decides bits, so it is a constant.
pub const SPLIT: u32 = 256;
/// Logits that one block of the argmax kernel reads.
pub const ARGMAX_PART: u32 = 1024;

/// Query rows that one block of the attention kernel computes.
pub const QUERY_ROWS: u32 = 64;
/// Arrays of a step's inputs, each of which starts at a multiple of 16 bytes.
const INPUT_ARRAYS: u64 = 7;
/// Values of a layout.
const VALUES: u64 = 19;

/// What the layout of a step depends on besides its shape.
#[derive(Clone, Copy, Debug)]
pub struct CudaSizes<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Most tokens of a sequence.
    pub max_tokens: u32,
    /// Most tokens that pass a layer together.
    pub chunk_tokens: u32,
}

/// Bytes from the start of the activation range to each value. `tokens`, `chunk`, `sequences` and `rows` are those of
/// the step's shape; `e` is the model's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaLayout {
    /// Workspace of cuBLASLt.
    pub workspace: u64,
    /// Inputs of the step, copied from the host as one piece of at most [`CudaSizes::input_bytes`].
    pub inputs: u64,
    /// Residual stream, f32 `[tokens][hidden]`.
    pub residual: u64,
    /// Cosines and sines, f32 `[tokens][head_dim]`.
    pub angles: u64,
    /// Output of a norm, e `[chunk][hidden]`.
    pub normed: u64,
    /// Queries before rotation, f32 `[chunk][heads][head_dim]`.
    pub queries: u64,
    /// Keys before rotation, f32 `[chunk][kv_heads][head_dim]`.
    pub keys: u64,
    /// Values before rounding, f32 `[chunk][kv_heads][head_dim]`.
    pub values: u64,
    /// Rotated queries, e `[chunk][heads][head_dim]`.
    pub rotated: u64,
    /// Output of attention, e `[chunk][heads][head_dim]`.
    pub attention_output: u64,
    /// Results of attention's splits, f32 `[partial rows][heads][head_dim]`.
    pub partial: u64,
    /// Largest score and sum of weights of each split, f32 `[partial rows][heads][2]`.
    pub partial_weights: u64,
    /// Sums of cuBLASLt before the function of the MLP, f32 `[chunk][intermediate]`, in the memory of attention.
    pub gate: u64,
    /// Output of the up projection, f32 `[chunk][intermediate]`.
    pub up: u64,
    /// Inner values of the MLP, e `[chunk][intermediate]`.
    pub ffn_hidden: u64,
    /// Output of the final norm, e `[rows][hidden]`.
    pub last_hidden: u64,
    /// Logits, f32 `[rows][vocab]`.
    pub logits: u64,
    /// Largest key of each part of a row, u64 `[rows][parts]`.
    pub argmax_keys: u64,
    /// Tokens of the largest logits, u32 `[rows]`.
    pub argmax_tokens: u64,
    /// Bytes of all values.
    pub bytes: u64,
}

impl CudaSizes<'_> {
    /// Returns the splits of the longest sequence.
    fn splits(&self) -> u64 {
        u64::from(self.max_tokens.div_ceil(SPLIT))
    }

    /// Returns a bound on the bytes of the step's inputs: whether it is stopped; rotary frequencies; tokens, positions
    /// and table rows; sequences with their block tables and the work items of attention; rows of logits.
    pub fn input_bytes(&self, shape: StepShape) -> u64 {
        let [tokens, sequences, rows] = [shape.tokens, shape.sequences, shape.logit_rows].map(u64::from);
        self.fixed_input_bytes()
            + tokens * self.token_input_bytes()
            + sequences * self.sequence_input_bytes()
            + rows * 4
    }

    fn fixed_input_bytes(&self) -> u64 {
        self.rotary() / 2 * 4 + INPUT_ARRAYS * 16
    }

    /// Id, position, table row; and where the token begins a chunk of its sequence, that sequence, its items, and the
    /// array of merged tokens.
    fn token_input_bytes(&self) -> u64 {
        let items = (self.spec.heads / self.spec.kv_heads).div_ceil(QUERY_ROWS);
        12 + 16 + 16 * u64::from(items) + 16
    }

    /// Block table of each layer, one item for each split, one item for a rest, a merged token.
    fn sequence_input_bytes(&self) -> u64 {
        let kv_blocks = u64::from(self.max_tokens.div_ceil(BLOCK_TOKENS));
        u64::from(self.spec.layers) * kv_blocks * 4 + self.splits() * 16 + 16 + 16
    }

    /// Returns the rotated numbers of a head; 0 where positions are learned.
    fn rotary(&self) -> u64 {
        if self.spec.family == Family::Llama { u64::from(self.spec.head_dim) } else { 0 }
    }

    /// Lays out a step of `shape`.
    pub fn layout(&self, shape: StepShape) -> CudaLayout {
        let spec = self.spec;
        let [tokens, sequences, rows] = [shape.tokens, shape.sequences, shape.logit_rows].map(u64::from);
        let chunk = tokens.min(u64::from(self.chunk_tokens));
        let e = spec.dtype.bytes() as u64;
        let [hidden, inner, vocab] = [spec.hidden, spec.intermediate, spec.vocab].map(u64::from);
        let [heads, kv_heads, dim] = [spec.heads, spec.kv_heads, spec.head_dim].map(u64::from);
        let rotary = self.rotary();
        // A decode has a row for each split, every other token one row.
        let partial_rows = sequences * self.splits() + chunk;
        let mut all = Cursor(0);
        let workspace = all.take(WORKSPACE_BYTES);
        let inputs = all.take(self.input_bytes(shape));
        let residual = all.take(tokens * hidden * 4);
        let angles = all.take(tokens * rotary * 4);
        let normed = all.take(chunk * hidden * e);
        // The MLP reuses the memory of attention.
        let mut attention = Cursor(all.0);
        let mut mlp = Cursor(all.0);
        let queries = attention.take(chunk * heads * dim * 4);
        let keys = attention.take(chunk * kv_heads * dim * 4);
        let values = attention.take(chunk * kv_heads * dim * 4);
        let rotated = attention.take(chunk * heads * dim * e);
        let attention_output = attention.take(chunk * heads * dim * e);
        let partial = attention.take(partial_rows * heads * dim * 4);
        let partial_weights = attention.take(partial_rows * heads * 8);
        let gate = mlp.take(chunk * inner * 4);
        let up = mlp.take(chunk * inner * 4);
        let ffn_hidden = mlp.take(chunk * inner * e);
        let mut all = Cursor(attention.0.max(mlp.0));
        CudaLayout {
            workspace,
            inputs,
            residual,
            angles,
            normed,
            queries,
            keys,
            values,
            rotated,
            attention_output,
            partial,
            partial_weights,
            gate,
            up,
            ffn_hidden,
            last_hidden: all.take(rows * hidden * e),
            logits: all.take(rows * vocab * 4),
            argmax_keys: all.take(rows * u64::from(spec.vocab.div_ceil(ARGMAX_PART)) * 8),
            argmax_tokens: all.take(rows * 4),
            bytes: all.0,
        }
    }

    /// Returns a bound on the bytes of [`CudaSizes::layout`] that is linear in the step's shape. The MLP reuses the
    /// memory of attention, so a token of a chunk costs the larger of the two.
    pub fn cost(&self) -> ActivationCost {
        let spec = self.spec;
        let e = spec.dtype.bytes() as u64;
        let [hidden, inner, vocab] = [spec.hidden, spec.intermediate, spec.vocab].map(u64::from);
        let [heads, kv_heads, dim] = [spec.heads, spec.kv_heads, spec.head_dim].map(u64::from);
        let rotary = self.rotary();
        let partial_row = heads * (dim * 4 + 8);
        let attention = heads * dim * (4 + 2 * e) + kv_heads * dim * 8 + partial_row;
        let mlp = inner * (8 + e);
        let argmax = u64::from(spec.vocab.div_ceil(ARGMAX_PART)) * 8 + 4;
        ActivationCost {
            fixed_bytes: WORKSPACE_BYTES + self.fixed_input_bytes() + VALUES * ALIGNMENT,
            stream_per_token_bytes: self.token_input_bytes() + hidden * 4 + rotary * 4,
            chunk_per_token_bytes: hidden * e + attention.max(mlp),
            chunk_tokens: self.chunk_tokens,
            per_sequence_bytes: self.sequence_input_bytes() + self.splits() * partial_row,
            per_logit_row_bytes: 4 + hidden * e + vocab * 4 + argmax,
        }
    }
}

/// The first free byte.
struct Cursor(u64);

impl Cursor {
    /// Places a value and returns its first byte.
    fn take(&mut self, bytes: u64) -> u64 {
        let start = self.0;
        self.0 += bytes.next_multiple_of(ALIGNMENT);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Dtype, RopeScaling};

    fn llama_3_8b() -> ModelSpec {
        ModelSpec {
            family: Family::Llama,
            dtype: Dtype::Bf16,
            vocab: 128_256,
            hidden: 4096,
            intermediate: 14_336,
            layers: 32,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            max_positions: 8192,
            norm_eps: 1e-5,
            rope_theta: 500_000.0,
            rope_scaling: RopeScaling::None,
            tied_embeddings: false,
            attention_bias: false,
            mlp_bias: false,
        }
    }

    /// Shapes around each change of slope.
    fn shapes() -> impl Iterator<Item = StepShape> {
        let tokens = [0, 1, 2, 63, 64, 65, 511, 512, 513, 2048, 5000];
        tokens.into_iter().flat_map(|tokens| {
            [0, 1, 7, 64].into_iter().flat_map(move |sequences| {
                [0, 1, 64].map(|logit_rows| StepShape { tokens, sequences, logit_rows })
            })
        })
    }

    #[test]
    fn the_cost_bounds_every_step_within_one_alignment_for_each_value_and_the_unshared_part() {
        for (dtype, inner) in [(Dtype::Bf16, 14_336), (Dtype::F32, 64), (Dtype::F16, 11_008)] {
            let spec = ModelSpec { dtype, intermediate: inner, ..llama_3_8b() };
            let sizes = CudaSizes { spec: &spec, max_tokens: 8192, chunk_tokens: 512 };
            let cost = sizes.cost();
            for shape in shapes() {
                let (bytes, bound) = (sizes.layout(shape).bytes, cost.bytes(shape));
                assert!(bytes <= bound, "{shape:?}: {bytes} of {bound}");
                // Where the MLP is larger, the partial results of sequences are within its memory.
                let hidden = u64::from(shape.sequences) * cost.per_sequence_bytes;
                assert!(bound - bytes <= VALUES * ALIGNMENT + hidden, "{shape:?}: {bytes} of {bound}");
            }
        }
    }

    #[test]
    fn a_step_of_llama_3_8b_costs_what_its_values_take() {
        let spec = llama_3_8b();
        let sizes = CudaSizes { spec: &spec, max_tokens: 8192, chunk_tokens: 2048 };
        let cost = sizes.cost();
        // Residual, angles and inputs; output of the norm, gate, up (f32) and inner values (bf16).
        assert_eq!(cost.stream_per_token_bytes, 4096 * 4 + 128 * 4 + 12 + 3 * 16);
        assert_eq!(cost.chunk_per_token_bytes, 4096 * 2 + 14_336 * (4 + 4 + 2));
        // 32 splits of 32 heads; 512 blocks in 32 layers.
        assert_eq!(cost.per_sequence_bytes, 32 * 32 * (128 * 4 + 8) + 32 * 512 * 4 + 32 * 16 + 2 * 16);
        assert_eq!(cost.per_logit_row_bytes, 4 + 4096 * 2 + 128_256 * 4 + 126 * 8 + 4);
    }

    #[test]
    fn values_that_are_needed_together_do_not_overlap() {
        let spec = llama_3_8b();
        let sizes = CudaSizes { spec: &spec, max_tokens: 8192, chunk_tokens: 64 };
        let shape = StepShape { tokens: 100, sequences: 9, logit_rows: 5 };
        let at = sizes.layout(shape);
        let starts = [
            at.workspace,
            at.inputs,
            at.residual,
            at.angles,
            at.normed,
            at.queries,
            at.keys,
            at.values,
            at.rotated,
            at.attention_output,
            at.partial,
            at.partial_weights,
            at.last_hidden,
            at.logits,
            at.argmax_keys,
            at.argmax_tokens,
            at.bytes,
        ];
        assert!(starts.is_sorted_by(|a, b| a < b), "{at:?}");
        assert!(starts.iter().all(|start| start.is_multiple_of(ALIGNMENT)));
        assert!([at.gate, at.up, at.ffn_hidden].is_sorted() && at.gate == at.queries);
        assert!(at.ffn_hidden + 64 * 14_336 * 2 <= at.last_hidden);
    }
}

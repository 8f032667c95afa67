//! The operations from which model families build their layers, for any device.

use sluice_link::slab::Tensor;

use crate::simd::product::Epilogue;

/// A value of the chunk that passes a layer: one row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    /// The residual stream.
    Residual,
    /// The output of a norm.
    Normed,
    /// The queries.
    Queries,
    /// The keys before they are rounded to the cache's dtype.
    Keys,
    /// The values before they are rounded to the cache's dtype.
    Values,
    /// The output of attention.
    AttentionOutput,
    /// The inner values of the MLP.
    FfnHidden,
}

/// A matrix product: the tensors of its weights and bias (if the slab has one), and the value that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    pub matrix: Tensor,
    pub bias: Tensor,
    pub output: Value,
    pub epilogue: Epilogue,
}

/// One chunk's pass through one layer. A device carries out the operations in the order of the calls.
pub(crate) trait LayerOps {
    /// `Normed = norm(Residual)`: LayerNorm if the slab has the bias, else RMSNorm.
    fn norm(&mut self, weight: Tensor, bias: Tensor);

    /// Multiplies `input` with each of `linears`. Afterwards `input` is undefined, so no other product may read it.
    fn multiply(&mut self, input: Value, linears: &[Linear]);

    /// Multiplies `input` with `gate`, then with `up` into the same value (gated MLP). `input` is undefined afterwards.
    fn multiply_gated(&mut self, input: Value, gate: &Linear, up: &Linear);

    /// Rotates queries and keys by their positions.
    fn rotate(&mut self);

    /// Rounds keys and values to the cache's dtype and writes them to the layer's blocks, only at the step's positions.
    fn write_kv(&mut self);

    /// `AttentionOutput = attention(Queries)` over the layer's blocks.
    fn attend(&mut self);
}

//! Small shapes in which no size is accidentally a multiple of another.

use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Returns a model with two query heads per K and V head, odd widths and untied embeddings.
pub fn llama(dtype: Dtype) -> ModelSpec {
    ModelSpec {
        family: Family::Llama,
        dtype,
        vocab: 300,
        hidden: 52,
        intermediate: 75,
        layers: 3,
        heads: 6,
        kv_heads: 3,
        head_dim: 18,
        max_positions: 256,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: false,
        attention_bias: false,
        mlp_bias: false,
    }
}

pub fn opt(dtype: Dtype) -> ModelSpec {
    ModelSpec {
        family: Family::Opt,
        hidden: 56,
        heads: 4,
        kv_heads: 4,
        head_dim: 14,
        tied_embeddings: true,
        attention_bias: true,
        mlp_bias: true,
        ..llama(dtype)
    }
}

pub const LLAMA3_SCALING: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_positions: 64,
};

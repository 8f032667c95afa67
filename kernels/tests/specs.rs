//! Small shapes in which no size is accidentally a multiple of another.

use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

/// Set in processes whose engines compute on a GPU.
pub const GPU_VAR: &str = "SLUICE_TEST_ENGINE_GPU";

/// Whether engines compute on a GPU: in processes that the tests of CUDA start.
pub fn on_gpu() -> bool {
    std::env::var_os(GPU_VAR).is_some()
}

pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Returns a model with two query heads per K and V head, odd widths and untied embeddings.
pub fn llama(dtype: Dtype) -> ModelSpec {
    let spec = ModelSpec {
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
    };
    // What kernels of a GPU read at once divides its sizes.
    if on_gpu() { ModelSpec { hidden: 48, intermediate: 72, head_dim: 24, ..spec } } else { spec }
}

pub fn opt(dtype: Dtype) -> ModelSpec {
    let spec = ModelSpec {
        family: Family::Opt,
        hidden: 56,
        heads: 4,
        kv_heads: 4,
        head_dim: 14,
        tied_embeddings: true,
        attention_bias: true,
        mlp_bias: true,
        ..llama(dtype)
    };
    if on_gpu() { ModelSpec { hidden: 64, intermediate: 80, head_dim: 16, ..spec } } else { spec }
}

pub const LLAMA3_SCALING: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_positions: 64,
};

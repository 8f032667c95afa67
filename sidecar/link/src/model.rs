//! The model's shape as the engine needs it to compute. The sidecar reads it from `config.json`; the engine opens no
//! model file.

use serde::{Deserialize, Serialize};

/// Model family, which selects the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// RMSNorm, rotary positions, grouped-query attention, gated SiLU (Llama 1, 2, 3).
    Llama,
    /// LayerNorm before each half, learned positions (offset 2), biases, ReLU (OPT).
    Opt,
}

/// Number format of weights and KV in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// Change of the rotary frequencies for long contexts (`rope_scaling` in `config.json`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Plain rotary positions.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// Llama 3.1: low frequencies are divided by `factor`, high ones kept, with a smooth ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f32,
        /// Wavelengths above `original_max_positions / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_max_positions / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of the pre-training.
        original_max_positions: u32,
    },
}

/// A model's shape. All layers are alike in these families.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Forward pass.
    pub family: Family,
    /// Number format of weights and KV cache.
    pub dtype: Dtype,
    /// Tokens in the vocabulary: rows of the embedding.
    pub vocab: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the MLP.
    pub intermediate: u32,
    /// Transformer layers.
    pub layers: u16,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of a head (even).
    pub head_dim: u32,
    /// Longest sequence that the model supports.
    pub max_positions: u32,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Base of the rotary frequencies (Llama).
    pub rope_theta: f32,
    /// Scaling of the rotary frequencies (Llama).
    pub rope_scaling: RopeScaling,
    /// Whether the head is the transposed embedding.
    pub tied_embeddings: bool,
    /// Whether Q, K, V and O have biases (always in OPT; `attention_bias` in Llama configs).
    pub attention_bias: bool,
    /// Whether the MLP's matrices have biases (always in OPT; `mlp_bias` in Llama configs).
    pub mlp_bias: bool,
}

impl ModelSpec {
    /// Returns the bytes of one layer block: K and V of 16 tokens in one layer.
    pub fn layer_block_bytes(&self) -> u64 {
        2 * 16 * u64::from(self.kv_heads) * u64::from(self.head_dim) * self.dtype.bytes() as u64
    }
}

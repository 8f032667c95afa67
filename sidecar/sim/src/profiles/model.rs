//! Published model shapes in half precision.

use sluice_policy::geometry::ActivationCost;

/// Bytes of a half-precision number.
const HALF: u64 = 2;

/// A decoder of identical layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelProfile {
    /// Name on the command line.
    pub name: &'static str,
    /// Layers.
    pub layers: u16,
    /// Width of the hidden state.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; fewer than query heads with grouped-query attention.
    pub kv_heads: u64,
    /// Width of the feed-forward network.
    pub ffn: u64,
    /// Matrices of the feed-forward network: 2, or 3 when it is gated.
    pub ffn_matrices: u64,
    /// Tokens of the vocabulary.
    pub vocab: u64,
    /// Embedding tables: 1 when input and output share one.
    pub embeddings: u64,
    /// Tokens of the longest sequence.
    pub context_tokens: u32,
}

impl ModelProfile {
    /// Parameters of one layer's matrices. Biases and norms are below a thousandth of them.
    pub const fn layer_parameters(&self) -> u64 {
        let kv_width = self.hidden / self.heads * self.kv_heads;
        let attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv_width;
        attention + self.ffn_matrices * self.hidden * self.ffn
    }

    /// Bytes of one layer's slab.
    pub const fn layer_bytes(&self) -> u64 {
        self.layer_parameters() * HALF
    }

    /// Bytes outside the layers: embeddings and head.
    pub const fn global_bytes(&self) -> u64 {
        self.embeddings * self.vocab * self.hidden * HALF
    }

    /// Bytes of all weights.
    pub const fn weight_bytes(&self) -> u64 {
        self.layers as u64 * self.layer_bytes() + self.global_bytes()
    }

    /// Activations of an engine that keeps a residual stream for every token of a step and all other tensors for one
    /// chunk.
    pub const fn activation(&self, chunk_tokens: u32) -> ActivationCost {
        ActivationCost {
            fixed_bytes: 64 << 20,
            stream_per_token_bytes: 2 * self.hidden * HALF,
            chunk_per_token_bytes: (self.ffn_matrices * self.ffn + 6 * self.hidden) * HALF,
            chunk_tokens,
            per_sequence_bytes: 4096,
            per_logit_row_bytes: self.vocab * 4,
        }
    }

    /// Bytes of KV of one token in one layer.
    pub const fn kv_layer_bytes(&self) -> u64 {
        2 * self.hidden / self.heads * self.kv_heads * HALF
    }

    /// Bytes of KV of one token in all layers.
    pub const fn kv_token_bytes(&self) -> u64 {
        self.layers as u64 * self.kv_layer_bytes()
    }
}

const fn opt(name: &'static str, layers: u16, hidden: u64, heads: u64) -> ModelProfile {
    ModelProfile {
        name,
        layers,
        hidden,
        heads,
        kv_heads: heads,
        ffn: 4 * hidden,
        ffn_matrices: 2,
        vocab: 50_272,
        embeddings: 1,
        context_tokens: 2048,
    }
}

const fn llama3(name: &'static str, layers: u16, hidden: u64, heads: u64, ffn: u64) -> ModelProfile {
    ModelProfile {
        name,
        layers,
        hidden,
        heads,
        kv_heads: 8,
        ffn,
        ffn_matrices: 3,
        vocab: 128_256,
        embeddings: 2,
        context_tokens: 8192,
    }
}

/// All models.
pub const ALL: [ModelProfile; 6] = [
    opt("opt-6.7b", 32, 4096, 32),
    opt("opt-13b", 40, 5120, 40),
    opt("opt-30b", 48, 7168, 56),
    ModelProfile {
        name: "llama-2-13b",
        layers: 40,
        hidden: 5120,
        heads: 40,
        kv_heads: 40,
        ffn: 13_824,
        ffn_matrices: 3,
        vocab: 32_000,
        embeddings: 2,
        context_tokens: 4096,
    },
    llama3("llama-3-8b", 32, 4096, 32, 14_336),
    llama3("llama-3-70b", 80, 8192, 64, 28_672),
];

/// Returns the model of this name.
pub fn find(name: &str) -> Option<&'static ModelProfile> {
    ALL.iter().find(|model| model.name == name)
}

//! Sizes that are constant while a tenant is loaded: the GPU's chunk and the model's layers.

use alloc::vec::Vec;

/// Bytes of a MiB.
pub(crate) const MIB: u64 = 1 << 20;

/// Tokens in a layer block.
pub const BLOCK_TOKENS: u32 = 16;

/// Activation bytes as a monotone function of a step's shape. The engine reports it in `Ready`.
///
/// A step of many tokens passes each layer chunk by chunk: the output of one layer is held for every token, all other
/// activations for the tokens of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivationCost {
    /// Bytes of a step of any shape.
    pub fixed_bytes: u64,
    /// Additional bytes for each token of the step.
    pub stream_per_token_bytes: u64,
    /// Additional bytes for each token of the step's longest chunk.
    pub chunk_per_token_bytes: u64,
    /// Maximum tokens of a chunk.
    pub chunk_tokens: u32,
    /// Additional bytes for each sequence of the step.
    pub per_sequence_bytes: u64,
    /// Additional bytes for each row of logits.
    pub per_logit_row_bytes: u64,
}

/// The shape of a step, which determines its activation memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens over all sequences.
    pub tokens: u32,
    /// Sequences with at least one token.
    pub sequences: u32,
    /// Rows for which logits are computed.
    pub logit_rows: u32,
}

impl ActivationCost {
    /// Returns the bytes that a step of this shape needs.
    pub fn bytes(&self, shape: StepShape) -> u64 {
        let parts = [
            (self.stream_per_token_bytes, shape.tokens),
            (self.chunk_per_token_bytes, shape.tokens.min(self.chunk_tokens)),
            (self.per_sequence_bytes, shape.sequences),
            (self.per_logit_row_bytes, shape.logit_rows),
        ];
        let part = |(bytes, count): (u64, u32)| bytes.saturating_mul(u64::from(count));
        parts.into_iter().map(part).fold(self.fixed_bytes, u64::saturating_add)
    }

    /// Returns the most tokens that a step with the sequences and logit rows of `shape` can have within `bytes`; 0 if
    /// none fits.
    pub fn max_tokens(&self, bytes: u64, shape: StepShape) -> u32 {
        let Some(left) = bytes.checked_sub(self.bytes(StepShape { tokens: 0, ..shape })) else { return 0 };
        let count = |left: u64, per_token: u64| left.checked_div(per_token).unwrap_or(u64::MAX);
        let within = count(left, self.stream_per_token_bytes.saturating_add(self.chunk_per_token_bytes));
        let chunk = u64::from(self.chunk_tokens);
        let tokens = if within < chunk {
            within
        } else {
            count(left - self.chunk_per_token_bytes.saturating_mul(chunk), self.stream_per_token_bytes)
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

/// Sizes of one tenant on one GPU. The sizes of a model, which plans read before there is a GPU, are those of
/// `sluice-wire`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a chunk: a property of the GPU.
    pub chunk_bytes: u64,
    /// Chunks that this tenant may hold, over all owners.
    pub capacity_chunks: u32,
    /// Bytes of embeddings, head and final norm.
    pub global_bytes: u64,
    /// Bytes of each layer's slab, front first.
    pub slab_bytes: Vec<u64>,
    /// Bytes of one layer block (16 tokens, K and V, one layer).
    pub layer_block_bytes: u64,
    /// Activation bytes by step shape.
    pub activation: ActivationCost,
    /// Chunks kept for staging copies.
    pub staging_chunks: u32,
}

impl Geometry {
    /// Returns the number of layers.
    pub fn layers(&self) -> u16 {
        self.slab_bytes.len() as u16
    }

    /// Returns the chunks that hold `bytes`.
    pub fn chunks_for(&self, bytes: u64) -> u32 {
        bytes.div_ceil(self.chunk_bytes) as u32
    }

    /// Returns the chunks of layer `layer`'s slab.
    pub fn slab_chunks(&self, layer: usize) -> u32 {
        self.chunks_for(self.slab_bytes[layer])
    }

    /// Returns the layer blocks in a chunk. A block never spans two chunks; the rest of the chunk is unused.
    pub fn layer_blocks_per_chunk(&self) -> u32 {
        (self.chunk_bytes / self.layer_block_bytes) as u32
    }

    /// Returns the bytes of a KV block: one layer block of every layer.
    pub fn kv_block_bytes(&self) -> u64 {
        u64::from(self.layers()) * self.layer_block_bytes
    }

    /// Returns the chunks that hold `kv_blocks` KV blocks if every KV chunk is full.
    pub fn kv_chunks_for(&self, kv_blocks: u32) -> u32 {
        (kv_blocks * u32::from(self.layers())).div_ceil(self.layer_blocks_per_chunk())
    }

    /// Returns the KV blocks that hold `tokens` tokens.
    pub const fn kv_blocks_for(tokens: u32) -> u32 {
        tokens.div_ceil(BLOCK_TOKENS)
    }
}

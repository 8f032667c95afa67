//! The work of a step: sequences, their tokens and the layer blocks that hold their K and V.

use sluice_link::vocabulary::StepShape;

/// The work of one step.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Sequences, in any order; at least one.
    pub sequences: &'a [Sequence<'a>],
}

impl Batch<'_> {
    /// Returns the shape, which determines the activation bytes.
    pub fn shape(&self) -> StepShape {
        StepShape {
            tokens: self.sequences.iter().map(|s| s.tokens.len() as u32).sum(),
            sequences: self.sequences.len() as u32,
            logit_rows: self.sequences.iter().map(|s| s.logit_rows as u32).sum(),
        }
    }
}

/// One sequence's part of a step: a prefill chunk (many tokens) or a decode (one token).
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Position of the first token. Earlier positions are read from the KV cache, never written.
    pub start: u32,
    /// Tokens at positions `start..start + tokens.len()`; at least one.
    pub tokens: &'a [u32],
    /// Layer-blocks of positions `0..start + tokens.len()`.
    pub layer_blocks: BlockTable<'a>,
    /// Number of trailing tokens that get logits, from 0 to `tokens.len()`.
    pub logit_rows: usize,
}

/// Ids of a sequence's layer blocks: KV block `c` holds positions `16 c .. 16 c + 16`.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable<'a> {
    /// Id of (layer, KV block) at index `layer * layer_stride + kv_block * kv_block_stride`.
    pub ids: &'a [u32],
    /// Distance between two layers of one KV block.
    pub layer_stride: usize,
    /// Distance between two KV blocks of one layer.
    pub kv_block_stride: usize,
}

impl<'a> BlockTable<'a> {
    /// Creates a table of `ids` that lists each layer's KV blocks one after another (`[layers][kv_blocks]`).
    pub fn by_layer(ids: &'a [u32], kv_blocks: usize) -> Self {
        BlockTable { ids, layer_stride: kv_blocks, kv_block_stride: 1 }
    }

    /// Creates a table of `ids` that lists each KV block's layers one after another (`[kv_blocks][layers]`).
    pub fn by_kv_block(ids: &'a [u32], layers: usize) -> Self {
        BlockTable { ids, layer_stride: 1, kv_block_stride: layers }
    }

    /// Returns the block of `kv_block` in `layer`; `None` past the end of the table.
    pub fn id(&self, layer: usize, kv_block: usize) -> Option<u32> {
        self.ids.get(layer * self.layer_stride + kv_block * self.kv_block_stride).copied()
    }
}

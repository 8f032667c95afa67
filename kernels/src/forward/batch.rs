//! The work of a step: sequences, their tokens and the layer-blocks that hold their K and V.

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
    pub blocks: BlockTable<'a>,
    /// Number of trailing tokens that get logits, from 0 to `tokens.len()`.
    pub logit_rows: usize,
}

/// Ids of a sequence's layer-blocks: column `c` holds positions `16 c .. 16 c + 16`.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable<'a> {
    /// Id of (layer, column) at index `layer * layer_stride + column * column_stride`.
    pub ids: &'a [u32],
    /// Distance between two layers of one column.
    pub layer_stride: usize,
    /// Distance between two columns of one layer.
    pub column_stride: usize,
}

impl<'a> BlockTable<'a> {
    /// Creates a table of `ids` that lists each layer's columns one after another (`[layers][columns]`).
    pub fn by_layer(ids: &'a [u32], columns: usize) -> Self {
        BlockTable { ids, layer_stride: columns, column_stride: 1 }
    }

    /// Creates a table of `ids` that lists each column's layers one after another (`[columns][layers]`).
    pub fn by_column(ids: &'a [u32], layers: usize) -> Self {
        BlockTable { ids, layer_stride: 1, column_stride: layers }
    }

    /// Returns the block of `column` in `layer`; `None` past the end of the table.
    pub fn id(&self, layer: usize, column: usize) -> Option<u32> {
        self.ids.get(layer * self.layer_stride + column * self.column_stride).copied()
    }
}

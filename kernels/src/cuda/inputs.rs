//! The inputs of a step: arrays that the host packs into one piece of memory, with their addresses on the device.

use super::Address;
use super::attention::{SPLIT, Sequence, Work};
use crate::forward::chunk::{Chunk, TokenRange};
use crate::forward::{self, BLOCK_TOKENS, Batch};

/// Alignment of each array, in bytes: what the widest vector load needs.
const ALIGNMENT: usize = 16;

/// Packs arrays one after another.
#[derive(Debug)]
struct Packer {
    base: Address,
    bytes: Vec<u8>,
}

impl Packer {
    /// Appends an array and returns its address.
    fn push<T: bytemuck::Pod>(&mut self, values: &[T]) -> Address {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let at = self.base + self.bytes.len() as Address;
        self.bytes.extend_from_slice(bytemuck::cast_slice(values));
        at
    }
}

/// Addresses of the inputs of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inputs {
    /// u32, 0: kernels set it when they stop the step.
    pub stopped: Address,
    /// u32 `[tokens]`
    pub tokens: Address,
    /// u32 `[tokens]`
    pub positions: Address,
    /// u32 `[tokens]`: the index of the token's sequence.
    pub table_rows: Address,
    /// u32 `[layers][sequences][columns]`: ids of blocks.
    pub tables: Address,
    /// Blocks of the longest sequence.
    pub columns: u32,
    /// Number of sequences.
    pub sequences: u32,
    /// f32: frequencies of the rotary pairs.
    pub frequencies: Address,
    /// u32 `[rows]`: the token of each row of logits.
    pub logit_rows: Address,
    /// The chunks.
    pub chunks: Vec<ChunkInputs>,
}

/// A chunk and its attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkInputs {
    /// First token of the chunk in the step.
    pub first: u32,
    /// Tokens of the chunk.
    pub tokens: u32,
    /// [`Work::sequences`]
    pub sequences: Address,
    /// [`Work::items`]
    pub items: Address,
    /// Number of items.
    pub item_count: u32,
    /// [`Work::merge_tokens`]
    pub merge_tokens: Address,
    /// Number of merged tokens.
    pub merge_count: u32,
}

/// What [`pack`] packs besides the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedModel<'a> {
    /// Layers of the model.
    pub layers: usize,
    /// Query heads per K and V head.
    pub group: u32,
    /// Frequencies of the rotary pairs; empty where positions are learned.
    pub frequencies: &'a [f32],
    /// Whether sizes that grow with positions are rounded up, so that many decode steps have equal ones.
    pub rounds_up: bool,
    /// KV blocks of the longest sequence that the model serves.
    pub most_columns: u32,
}

/// Packs the inputs of a checked batch, which are copied to `base`.
pub(super) fn pack(
    base: Address,
    model: PackedModel<'_>,
    batch: &Batch<'_>,
    chunks: &[Chunk],
) -> (Vec<u8>, Inputs) {
    let mut packer = Packer { base, bytes: Vec::new() };
    let rows = || (0u32..).zip(batch.sequences);
    let tokens: Vec<u32> = rows().flat_map(|(_, sequence)| sequence.tokens.iter().copied()).collect();
    let positions: Vec<u32> =
        rows().flat_map(|(_, sequence)| (sequence.start..).take(sequence.tokens.len())).collect();
    let table_rows: Vec<u32> =
        rows().flat_map(|(row, sequence)| std::iter::repeat_n(row, sequence.tokens.len())).collect();
    let (tables, columns) = tables(&model, batch);
    let inputs = Inputs {
        stopped: packer.push(&[0_u32]),
        tokens: packer.push(&tokens),
        positions: packer.push(&positions),
        table_rows: packer.push(&table_rows),
        tables: packer.push(&tables),
        columns,
        sequences: batch.sequences.len() as u32,
        frequencies: packer.push(model.frequencies),
        logit_rows: packer.push(&logit_rows(batch)),
        chunks: chunks.iter().map(|chunk| pack_chunk(&mut packer, chunk, &model, columns as usize)).collect(),
    };
    (packer.bytes, inputs)
}

fn pack_chunk(packer: &mut Packer, chunk: &Chunk, model: &PackedModel<'_>, columns: usize) -> ChunkInputs {
    let sequence = |range: &TokenRange| Sequence {
        token: range.row as u32,
        tokens: range.tokens as u32,
        position: range.start as u32,
        table_row: range.sequence as u32,
    };
    let sequences: Vec<Sequence> = chunk.ranges.iter().map(sequence).collect();
    // No family of the engine has a sliding window.
    let work = Work::new(&sequences, model.group, 0);
    let work = if model.rounds_up { round_up(work, columns) } else { work };
    ChunkInputs {
        first: chunk.rows.start as u32,
        tokens: chunk.rows.len() as u32,
        sequences: packer.push(&work.sequences),
        items: packer.push(&work.items),
        item_count: work.items.len() as u32,
        merge_tokens: packer.push(&work.merge_tokens),
        merge_count: work.merge_tokens.len() as u32,
    }
}

/// Adds work that does nothing, up to a number that depends on the sequences and on `columns` alone. A step whose
/// sequences are all short still needs no merge.
fn round_up(work: Work, columns: usize) -> Work {
    let sequences = work.sequences.len();
    let items = (sequences * (columns * BLOCK_TOKENS).div_ceil(SPLIT as usize)).max(work.items.len());
    let merged = if work.merge_tokens.is_empty() { 0 } else { sequences };
    work.padded(items).merge_padded(merged)
}

/// Returns the ids of all layers' blocks, a row per sequence, and the length of a row.
fn tables(model: &PackedModel<'_>, batch: &Batch<'_>) -> (Vec<u32>, u32) {
    let blocks = |sequence: &forward::Sequence<'_>| {
        (sequence.start as usize + sequence.tokens.len()).div_ceil(BLOCK_TOKENS)
    };
    let longest = batch.sequences.iter().map(blocks).max().unwrap_or(0);
    let columns = match model.rounds_up {
        true => longest.next_power_of_two().min(model.most_columns as usize).max(longest),
        false => longest,
    };
    let mut ids = Vec::with_capacity(model.layers * batch.sequences.len() * columns);
    for layer in 0..model.layers {
        for sequence in batch.sequences {
            let used = blocks(sequence);
            let id = |block| sequence.layer_blocks.id(layer, block).expect("the block table was checked");
            ids.extend((0..used).map(id));
            ids.extend(std::iter::repeat_n(0, columns - used));
        }
    }
    (ids, columns as u32)
}

/// Returns the tokens whose logits are wanted: the last ones of each sequence.
fn logit_rows(batch: &Batch<'_>) -> Vec<u32> {
    let mut end = 0;
    let mut rows = Vec::new();
    for sequence in batch.sequences {
        end += sequence.tokens.len() as u32;
        rows.extend(end - sequence.logit_rows as u32..end);
    }
    rows
}

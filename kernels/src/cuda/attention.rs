//! Paged attention (`attention.cuh`, `attention_merge.cu`, `attention_f32.cu`).
//!
//! [`Work`] cuts a step's attention into blocks of the grid. How it does that changes no bit: tiles and splits lie at
//! absolute positions, and splits are merged in order, by one block or by a launch of their own.

use std::f32::consts::LOG2_E;

use sluice_link::model::Dtype;

use super::Address;
use super::arguments::arguments;
use super::memory::KvArena;
use super::plan::{LaunchPlan, Module, ShapeError, blocks, multiple};

/// Positions of a split, a multiple of every tile, and query rows (tokens x heads of a group) of one block. A batch of
/// 16 sequences of 1,000 tokens with 8 K and V heads makes 512 blocks, about four per multiprocessor of an H100.
pub use sluice_link::activation::cuda::{QUERY_ROWS as ROWS, SPLIT};

/// Widest head.
pub const MAX_DIM: u32 = 256;

/// `row` of an item without work, `split` of one that has all splits, and `token` of a merge without work.
const NONE: u32 = u32::MAX;

/// Widths of heads for which there is a kernel on tensor cores.
const DIMS: [u32; 7] = [32, 64, 80, 96, 112, 128, 256];

arguments! {
    /// A sequence's part of a step.
    Sequence {
        /// Row of its first token in queries and results.
        token: u32,
        /// Tokens in this step; at least one.
        tokens: u32,
        /// Position of the first token.
        position: u32,
        /// Row of the block table.
        table_row: u32,
    }
}

arguments! {
    /// The work of one block, for each K and V head.
    Item {
        /// Index of the sequence.
        sequence: u32,
        /// First query row within the sequence.
        row: u32,
        /// The one split, or `u32::MAX` for all.
        split: u32,
        /// Row of the first token in the partial results.
        partial: u32,
    }
}

arguments! {
    /// A token whose splits are merged by a launch of their own.
    MergeToken {
        /// Row of the output.
        token: u32,
        /// Position.
        position: u32,
    }
}

arguments! {
    /// Attention on tensor cores.
    Attention {
        /// Where layer-blocks lie.
        arena: KvArena,
        /// `[tokens][heads][dim]`
        queries: Address,
        /// `[tokens][heads][dim]`
        output: Address,
        /// `[`[`Work::partial_rows`]`][heads][dim]`, f32.
        partial: Address,
        /// `[`[`Work::partial_rows`]`][heads][2]`, f32.
        partial_weights: Address,
        /// `[..][columns]`, u32: ids of the layer's blocks.
        table: Address,
        /// [`Work::sequences`]
        sequences: Address,
        /// [`Work::items`]
        items: Address,
        /// Ids of a row of the table.
        columns: u32,
        /// Query heads.
        heads: u32,
        /// K and V heads.
        kv_heads: u32,
        /// Width of a head.
        dim: u32,
        /// [`Work::merge_tokens`], their number.
        partial_tokens: u32,
        /// [`SPLIT`]
        split: u32,
        /// Positions that a token sees, itself included; 0 for all.
        window: u32,
        /// [`Score::scale`]
        score_scale: f32,
        /// [`Score::cap`]
        score_cap: f32,
        /// Zero.
        unused: u32,
    }
}

arguments! {
    /// The merge of splits.
    AttentionMerge {
        /// As of [`Attention`].
        partial: Address,
        /// As of [`Attention`].
        partial_weights: Address,
        /// `[rows][heads][dim]`
        output: Address,
        /// [`Work::merge_tokens`]
        tokens: Address,
        /// Number of tokens.
        count: u32,
        /// Query heads.
        heads: u32,
        /// Width of a head.
        dim: u32,
        /// [`SPLIT`]
        split: u32,
        /// As of [`Attention`].
        window: u32,
        /// Zero.
        unused: u32,
    }
}

arguments! {
    /// Attention in f32, without tensor cores and splits.
    AttentionF32 {
        /// Where layer-blocks lie.
        arena: KvArena,
        /// `[tokens][heads][dim]`
        queries: Address,
        /// `[tokens][heads][dim]`
        output: Address,
        /// `[tokens]`, u32.
        positions: Address,
        /// `[tokens]`, u32: row of the block table.
        table_rows: Address,
        /// `[..][columns]`, u32: ids of the layer's blocks.
        table: Address,
        /// Ids of a row of the table.
        columns: u32,
        /// Tokens.
        tokens: u32,
        /// Query heads.
        heads: u32,
        /// K and V heads.
        kv_heads: u32,
        /// Width of a head.
        dim: u32,
        /// Positions that a token sees, itself included; 0 for all.
        window: u32,
        /// [`Score::scale`]
        score_scale: f32,
        /// [`Score::cap`]
        score_cap: f32,
    }
}

/// How a dot product becomes a score in units of log2, as the kernels need it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Factor of the dot product.
    pub scale: f32,
    /// 0, or the factor of tanh.
    pub cap: f32,
}

impl Score {
    /// A score is `scale * dot`, or `cap * tanh(scale * dot / cap)` with a soft cap (Gemma 2).
    pub fn new(scale: f32, soft_cap: Option<f32>) -> Self {
        match soft_cap {
            None => Score { scale: scale * LOG2_E, cap: 0.0 },
            Some(cap) => Score { scale: scale / cap, cap: cap * LOG2_E },
        }
    }
}

/// A step's attention, cut into blocks of the grid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// The sequences.
    pub sequences: Vec<Sequence>,
    /// Blocks of the grid's first dimension.
    pub items: Vec<Item>,
    /// Tokens whose splits are merged by a launch of their own.
    pub merge_tokens: Vec<MergeToken>,
    /// Rows of the partial results.
    pub partial_rows: u32,
}

impl Work {
    /// Cuts the attention of `sequences`, with `group` query heads per K and V head.
    ///
    /// A decode, which is one token, is cut into splits with a block each: it has few rows and a long context. Its
    /// partial results have a row for each split. A sequence of more tokens has blocks of rows, each over all splits.
    pub fn new(sequences: &[Sequence], group: u32, window: u32) -> Self {
        let mut work = Work { sequences: sequences.to_vec(), ..Work::default() };
        let last_split = |sequence: &Sequence| (sequence.position + sequence.tokens - 1) / SPLIT;
        let is_cut = |sequence: &Sequence| sequence.tokens == 1 && group <= ROWS && last_split(sequence) > 0;
        for (index, sequence) in (0..).zip(sequences).filter(|(_, sequence)| is_cut(sequence)) {
            let partial = work.merge_tokens.len() as u32;
            let first = first_position(sequence.position, window) / SPLIT;
            let item = |split| Item { sequence: index, row: 0, split, partial };
            work.items.extend((first..=last_split(sequence)).map(item));
            let token = |i| MergeToken { token: sequence.token + i, position: sequence.position + i };
            work.merge_tokens.extend((0..sequence.tokens).map(token));
        }
        let splits =
            sequences.iter().filter(|sequence| is_cut(sequence)).map(|sequence| last_split(sequence) + 1);
        work.partial_rows = splits.max().unwrap_or(0) * work.merge_tokens.len() as u32;
        for (index, sequence) in (0..).zip(sequences).filter(|(_, sequence)| !is_cut(sequence)) {
            let partial = work.partial_rows;
            let item = |row| Item { sequence: index, row, split: NONE, partial };
            work.items.extend((0..sequence.tokens * group).step_by(ROWS as usize).map(item));
            if last_split(sequence) > 0 {
                work.partial_rows += sequence.tokens;
            }
        }
        work
    }

    /// The same work with surplus tokens to merge that do nothing, for a grid of a fixed size (CUDA graphs). All
    /// sequences are decodes.
    ///
    /// # Panics
    /// If there are more tokens already.
    pub fn merge_padded(mut self, tokens: usize) -> Self {
        let merged = self.merge_tokens.len();
        assert!(merged <= tokens, "{merged} merged tokens do not fit into {tokens}");
        self.merge_tokens.resize(tokens, MergeToken { token: NONE, position: 0 });
        self
    }

    /// The same work with surplus items that do nothing, for a grid of a fixed size (CUDA graphs).
    ///
    /// # Panics
    /// If there are more items already.
    pub fn padded(mut self, items: usize) -> Self {
        assert!(self.items.len() <= items, "{} items do not fit into {items}", self.items.len());
        self.items.resize(items, Item { row: NONE, ..Item::default() });
        self
    }
}

/// First position that a token sees.
fn first_position(position: u32, window: u32) -> u32 {
    if window == 0 { 0 } else { (position + 1).saturating_sub(window) }
}

impl Attention {
    /// Plans the launch for `items` items.
    ///
    /// # Errors
    /// If no kernel has the width of the heads. Widths between those of the kernels are padded in the kernel.
    pub fn plan(&self, dtype: Dtype, items: u32) -> Result<LaunchPlan, ShapeError> {
        const BF16: [&str; 7] = [
            "sluice_attention_bf16_32",
            "sluice_attention_bf16_64",
            "sluice_attention_bf16_80",
            "sluice_attention_bf16_96",
            "sluice_attention_bf16_112",
            "sluice_attention_bf16_128",
            "sluice_attention_bf16_256",
        ];
        const F16: [&str; 7] = [
            "sluice_attention_f16_32",
            "sluice_attention_f16_64",
            "sluice_attention_f16_80",
            "sluice_attention_f16_96",
            "sluice_attention_f16_112",
            "sluice_attention_f16_128",
            "sluice_attention_f16_256",
        ];
        let width = width(self.dim)?;
        let kernel = match dtype {
            Dtype::Bf16 => (Module::AttentionBf16, BF16[width]),
            Dtype::F16 => (Module::AttentionF16, F16[width]),
            Dtype::F32 => {
                return Err(ShapeError::Formats {
                    what: "attention on tensor cores",
                    input: dtype,
                    output: dtype,
                });
            }
        };
        Ok(LaunchPlan::new(kernel, [items, self.kv_heads, 1], 128, self))
    }
}

impl AttentionMerge {
    /// Plans the launch.
    ///
    /// # Errors
    /// If the format is f32, which has no splits.
    pub fn plan(&self, dtype: Dtype) -> Result<LaunchPlan, ShapeError> {
        let kernel = match dtype {
            Dtype::Bf16 => "sluice_attention_merge_bf16",
            Dtype::F16 => "sluice_attention_merge_f16",
            Dtype::F32 => {
                return Err(ShapeError::Formats { what: "merge of attention", input: dtype, output: dtype });
            }
        };
        let grid = [blocks(u64::from(self.count) * u64::from(self.heads), 4), 1, 1];
        Ok(LaunchPlan::new((Module::AttentionMerge, kernel), grid, 128, self))
    }
}

impl AttentionF32 {
    /// Plans the launch.
    ///
    /// # Errors
    /// If heads are wider than [`MAX_DIM`].
    pub fn plan(&self) -> Result<LaunchPlan, ShapeError> {
        check_width(self.dim)?;
        let grid = [blocks(u64::from(self.tokens) * u64::from(self.heads), 4), 1, 1];
        Ok(LaunchPlan::new((Module::AttentionF32, "sluice_attention_f32"), grid, 128, self))
    }
}

/// The kernel's index for heads of `dim` numbers.
fn width(dim: u32) -> Result<usize, ShapeError> {
    check_width(dim)?;
    multiple("the width of a head", dim, 8)?;
    Ok(DIMS.iter().position(|width| dim <= *width).expect("the last width is the largest"))
}

fn check_width(dim: u32) -> Result<(), ShapeError> {
    if dim <= MAX_DIM {
        Ok(())
    } else {
        Err(ShapeError::TooLarge { what: "the width of a head", value: dim, limit: MAX_DIM })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(token: u32, tokens: u32, position: u32) -> Sequence {
        Sequence { token, tokens, position, table_row: 0 }
    }

    #[test]
    fn a_decode_is_cut_into_splits_and_a_prefill_into_rows() {
        let work = Work::new(&[sequence(0, 1, 600), sequence(1, 100, 300)], 4, 0);
        let splits: Vec<_> = work.items[..3].iter().map(|item| (item.sequence, item.split)).collect();
        assert_eq!(splits, [(0, 0), (0, 1), (0, 2)]);
        let rows: Vec<_> = work.items[3..].iter().map(|item| (item.sequence, item.row, item.split)).collect();
        assert_eq!(rows, (0..7).map(|block| (1, 64 * block, NONE)).collect::<Vec<_>>());
        assert_eq!((work.merge_tokens.len(), work.partial_rows), (1, 3 + 100));
        assert_eq!(work.items[3].partial, 3, "after the splits of the decode");
    }

    #[test]
    fn splits_before_the_window_are_left_out_and_short_contexts_need_no_partial_results() {
        let work = Work::new(&[sequence(0, 1, 1000)], 1, 300);
        assert_eq!(work.items.iter().map(|item| item.split).collect::<Vec<_>>(), [2, 3], "from position 701");
        let work = Work::new(&[sequence(0, 1, 255)], 1, 0);
        assert_eq!((work.items.len(), work.items[0].split, work.partial_rows), (1, NONE, 0));
    }

    #[test]
    fn heads_take_the_next_width_and_odd_ones_are_refused() {
        let kernel = |dim| Attention { dim, kv_heads: 1, ..Attention::default() }.plan(Dtype::Bf16, 1);
        let name = |dim| kernel(dim).map(|plan| plan.kernel);
        assert_eq!(name(8), Ok("sluice_attention_bf16_32"));
        assert_eq!(name(72), Ok("sluice_attention_bf16_80"));
        assert_eq!(name(256), Ok("sluice_attention_bf16_256"));
        assert!(matches!(name(12), Err(ShapeError::NotAMultiple { value: 12, unit: 8, .. })));
        assert!(matches!(name(264), Err(ShapeError::TooLarge { value: 264, limit: 256, .. })));
    }
}

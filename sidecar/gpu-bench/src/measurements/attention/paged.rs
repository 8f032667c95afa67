//! Attention over paged K and V, as a step of the engine launches it for one layer.

use sluice_kernels::cuda::LaunchPlan;
use sluice_kernels::cuda::attention::{Attention, AttentionMerge, Score, Sequence, Work};
use sluice_kernels::cuda::memory::KvArena;
use sluice_link::model::Dtype;
use sluice_memory::cuda::{Buffer, Error};

use crate::device_data::DeviceData;

/// Bytes of a chunk of the arena.
const CHUNK: u64 = 2 << 20;
/// Tokens of a block.
const BLOCK_TOKENS: u32 = 16;

/// The heads of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub heads: u32,
    /// K and V heads.
    pub kv_heads: u32,
    /// Numbers of a head.
    pub dim: u32,
}

impl Heads {
    /// Returns the bytes of K and V of one token.
    pub fn kv_token_bytes(self) -> u64 {
        u64::from(self.kv_heads * self.dim) * 4
    }

    /// Returns an arena for these numbers of tokens, a table row for each, and the ids of a row.
    pub fn arena(self, data: &DeviceData, tokens: &[u32]) -> Result<(KvArena, [Buffer; 2], u32), Error> {
        let block_bytes = self.kv_token_bytes() * u64::from(BLOCK_TOKENS);
        let columns = tokens.iter().map(|tokens| tokens.div_ceil(BLOCK_TOKENS)).max().unwrap_or(1);
        let blocks = columns * tokens.len() as u32;
        let chunks = u64::from(blocks).div_ceil(CHUNK / block_bytes);
        let memory = data.random(chunks * CHUNK)?;
        let table = data.upload(&(0..blocks).collect::<Vec<u32>>())?;
        Ok((KvArena::new(memory.at(0), CHUNK, block_bytes as u32), [memory, table], columns))
    }
}

/// The launches of one layer's attention with the memory that they use.
#[derive(Debug)]
pub struct Paged {
    attention: Attention,
    merge: AttentionMerge,
    items: u32,
    _memory: Vec<Buffer>,
}

impl Paged {
    /// Prepares sequences, each with the position of its first token in the step, and its tokens there.
    pub fn new(data: &DeviceData, heads: Heads, sequences: &[(u32, u32)]) -> Result<Paged, Error> {
        let Heads { heads: query_heads, kv_heads, dim } = heads;
        let ends: Vec<u32> = sequences.iter().map(|(position, tokens)| position + tokens).collect();
        let (arena, [memory, table], columns) = heads.arena(data, &ends)?;
        let mut token = 0;
        let sequences = (0..).zip(sequences).map(|(table_row, (position, tokens))| {
            let first = token;
            token += tokens;
            Sequence { token: first, tokens: *tokens, position: *position, table_row }
        });
        let work = Work::new(&sequences.collect::<Vec<_>>(), query_heads / kv_heads, 0);
        let row = u64::from(query_heads * dim);
        let queries = data.random(u64::from(token) * row * 2)?;
        let output = data.empty(u64::from(token) * row * 2)?;
        let partial = data.empty(u64::from(work.partial_rows) * row * 4)?;
        let weights = data.empty(u64::from(work.partial_rows * query_heads) * 8)?;
        let (list, items) = (data.upload(&work.sequences)?, data.upload(&work.items)?);
        let merged = data.upload(&work.merge_tokens)?;
        let score = Score::new((dim as f32).sqrt().recip(), None);
        let partial_tokens = work.merge_tokens.len() as u32;
        let attention = Attention {
            arena,
            queries: queries.at(0),
            output: output.at(0),
            partial: partial.at(0),
            partial_weights: weights.at(0),
            table: table.at(0),
            sequences: list.at(0),
            items: items.at(0),
            columns,
            heads: query_heads,
            kv_heads,
            dim,
            partial_tokens,
            split: sluice_kernels::cuda::attention::SPLIT,
            window: 0,
            score_scale: score.scale,
            score_cap: score.cap,
            unused: 0,
        };
        let merge = AttentionMerge {
            partial: partial.at(0),
            partial_weights: weights.at(0),
            output: output.at(0),
            tokens: merged.at(0),
            count: partial_tokens,
            heads: query_heads,
            dim,
            split: attention.split,
            window: 0,
            unused: 0,
        };
        let kept = vec![memory, table, queries, output, partial, weights, list, items, merged];
        Ok(Paged { attention, merge, items: work.items.len() as u32, _memory: kept })
    }

    /// Returns the launches.
    pub fn launches(&self) -> Vec<LaunchPlan> {
        let attention = self.attention.plan(Dtype::Bf16, self.items).expect("the kernels have these heads");
        let merge = || self.merge.plan(Dtype::Bf16).expect("bf16 has splits");
        std::iter::once(attention).chain((self.merge.count > 0).then(merge)).collect()
    }
}

//! Splits a step into chunks of tokens that pass a layer together, and their attention into tasks.
//!
//! Chunks follow the order of the batch, so a sequence's earlier tokens have written their K and V of a layer before
//! its later tokens read them.

use std::ops::Range;

use sluice_link::model::ModelSpec;

use super::Batch;
use crate::ops::attention::MAX_QUERIES;

/// Tokens of one sequence within a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRange {
    /// Index in the batch.
    pub sequence: usize,
    /// Row of the first token within the chunk.
    pub row: usize,
    /// Position of the first token.
    pub start: usize,
    /// Number of tokens; at least one.
    pub tokens: usize,
}

/// Queries of one attention task: some query heads of one K and V head, some tokens of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttentionTask {
    /// The tokens of the sequence in this chunk.
    pub range: TokenRange,
    pub kv_head: usize,
    /// Indices among the query heads that share the K and V head.
    pub heads: Range<usize>,
    /// Indices among the range's tokens.
    pub tokens: Range<usize>,
}

/// Tokens that pass a layer together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Rows of the step.
    pub rows: Range<usize>,
    /// Parts of the sequences, in batch order.
    pub ranges: Vec<TokenRange>,
    /// Attention tasks over the ranges.
    pub attention: Vec<AttentionTask>,
}

/// Splits a step into the fewest chunks of at most `most` tokens, with even sizes: a short last chunk would read all
/// weights for few tokens.
pub(crate) fn chunks(spec: &ModelSpec, batch: &Batch<'_>, most: usize) -> Vec<Chunk> {
    let tokens = batch.sequences.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
    let even = tokens.div_ceil(tokens.div_ceil(most).max(1));
    let starts = (0..tokens).step_by(even.max(1));
    starts.map(|first| chunk(spec, batch, first..(first + even).min(tokens))).collect()
}

fn chunk(spec: &ModelSpec, batch: &Batch<'_>, rows: Range<usize>) -> Chunk {
    let mut first = 0;
    let mut pieces = Vec::new();
    for (sequence, part) in batch.sequences.iter().enumerate() {
        let here = rows.start.max(first)..rows.end.min(first + part.tokens.len());
        if !here.is_empty() {
            let start = part.start as usize + here.start - first;
            pieces.push(TokenRange { sequence, row: here.start - rows.start, start, tokens: here.len() });
        }
        first += part.tokens.len();
    }
    let attention = pieces.iter().flat_map(|piece| attention_tasks(spec, *piece)).collect();
    Chunk { rows, ranges: pieces, attention }
}

fn attention_tasks(spec: &ModelSpec, piece: TokenRange) -> Vec<AttentionTask> {
    let group = (spec.heads / spec.kv_heads) as usize;
    let heads = group.min(MAX_QUERIES);
    let tokens = MAX_QUERIES / heads;
    let mut tasks = Vec::new();
    for kv_head in 0..spec.kv_heads as usize {
        for head in (0..group).step_by(heads) {
            for token in (0..piece.tokens).step_by(tokens) {
                let heads = head..(head + heads).min(group);
                let tokens = token..(token + tokens).min(piece.tokens);
                tasks.push(AttentionTask { range: piece, kv_head, heads, tokens });
            }
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use sluice_link::model::{Dtype, Family, RopeScaling};

    use super::*;
    use crate::forward::{BlockTable, Sequence};

    fn spec() -> ModelSpec {
        ModelSpec {
            family: Family::Opt,
            dtype: Dtype::F32,
            vocab: 8,
            hidden: 4,
            intermediate: 4,
            layers: 1,
            heads: 2,
            kv_heads: 2,
            head_dim: 2,
            max_positions: 1024,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            tied_embeddings: true,
            attention_bias: true,
            mlp_bias: true,
        }
    }

    fn cut(lengths: &[usize], most: usize) -> Vec<Vec<(usize, usize, usize, usize)>> {
        let spec = spec();
        let tokens = vec![0; 64];
        let sequence = |(at, length): (usize, &usize)| Sequence {
            start: 100 * at as u32,
            tokens: &tokens[..*length],
            layer_blocks: BlockTable::by_layer(&[], 0),
            logit_rows: 0,
        };
        let sequences: Vec<_> = lengths.iter().enumerate().map(sequence).collect();
        let pieces = |chunk: &Chunk| {
            chunk.ranges.iter().map(|p| (p.sequence, p.row, p.start, p.tokens)).collect::<Vec<_>>()
        };
        chunks(&spec, &Batch { sequences: &sequences }, most).iter().map(pieces).collect()
    }

    #[test]
    fn a_step_within_the_limit_is_one_chunk_and_a_longer_one_is_cut_evenly() {
        assert_eq!(cut(&[3, 5], 8), [[(0, 0, 0, 3), (1, 3, 100, 5)]]);
        assert_eq!(cut(&[9], 8), [[(0, 0, 0, 5)], [(0, 0, 5, 4)]], "not eight and one");
        assert_eq!(
            cut(&[3, 5, 4], 4),
            [vec![(0, 0, 0, 3), (1, 3, 100, 1)], vec![(1, 0, 101, 4)], vec![(2, 0, 200, 4)],]
        );
    }
}

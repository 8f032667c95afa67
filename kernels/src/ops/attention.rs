//! Causal attention of a few queries over a sequence's layer blocks, with an online softmax (Milakov and Gimelshein
//! 2018, arXiv 1805.02867) whose tiles are the blocks.
//!
//! A tile is 16 *absolute* positions, so the order of every sum depends only on the query's position: not on its chunk,
//! on the other queries of the task, or on the step that wrote its K and V.

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Attention`")]

use std::ops::Range;

use super::kv::{BLOCK_TOKENS, KvArena};
use crate::simd::{Element, Kernel, LANES, Lanes, math};

const _: () = assert!(LANES == BLOCK_TOKENS, "the scores of a block are one vector");

/// Maximum of queries per task. They and their results fit the first-level cache.
pub const MAX_QUERIES: usize = 32;

/// Attention of `tokens.len()` tokens x `heads` query heads that share one K and V head.
///
/// Query (token t, head h) is at `queries + t * stride + h * head_dim`, its result at the same offset of `output`. At
/// most [`MAX_QUERIES`] queries. The blocks hold all positions up to and including the last token's.
pub struct Attention<'a, E, B> {
    /// Blocks of the layer.
    pub arena: &'a KvArena<E>,
    /// Returns the id of a KV block's block.
    pub layer_block: B,
    /// The shared K and V head.
    pub kv_head: usize,
    /// Positions of the tokens.
    pub tokens: Range<usize>,
    /// Query heads.
    pub heads: usize,
    /// Queries of the first token's first head.
    pub queries: *const f32,
    /// Result of the first token's first head.
    pub output: *mut f32,
    /// Words from one token to the next, in queries and results.
    pub stride: usize,
}

/// Running maximum and sum of each query's softmax.
struct Softmax {
    largest: [f32; MAX_QUERIES],
    sum: [f32; MAX_QUERIES],
}

/// One block's K and V of the head, and the number of its positions that the queries see.
#[derive(Clone, Copy)]
struct Tile<E> {
    keys: *const E,
    values: *const E,
    visible: usize,
}

impl<E: Element, B: Fn(usize) -> u32> Kernel for Attention<'_, E, B> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let queries = self.tokens.len() * self.heads;
        assert!(queries <= MAX_QUERIES, "{queries} queries in one task");
        let mut softmax = Softmax { largest: [f32::NEG_INFINITY; MAX_QUERIES], sum: [0.0; MAX_QUERIES] };
        unsafe {
            self.each_result::<V>(queries, |_, _| V::splat(0.0));
            for kv_block in 0..=(self.tokens.end - 1) / BLOCK_TOKENS {
                self.kv_block::<V>(kv_block, &mut softmax);
            }
            self.each_result::<V>(queries, |query, sum| sum.div(V::splat(softmax.sum[query])));
        }
    }
}

impl<E: Element, B: Fn(usize) -> u32> Attention<'_, E, B> {
    #[inline(always)]
    unsafe fn kv_block<V: Lanes>(&self, kv_block: usize, softmax: &mut Softmax) {
        let first = kv_block * BLOCK_TOKENS;
        let id = (self.layer_block)(kv_block);
        let (keys, values) = (self.arena.keys(id, self.kv_head), self.arena.values(id, self.kv_head));
        // Tokens before `begin` see no position of the block; tokens from `whole` on see all of it.
        let begin = self.tokens.start.max(first);
        let whole = begin.max(first + BLOCK_TOKENS - 1).min(self.tokens.end);
        let query = |position: usize| (position - self.tokens.start) * self.heads;
        unsafe {
            for position in begin..whole {
                let tile = Tile { keys, values, visible: position + 1 - first };
                self.queries::<V>(query(position)..query(position + 1), tile, softmax);
            }
            let tile = Tile { keys, values, visible: BLOCK_TOKENS };
            self.queries::<V>(query(whole)..query(self.tokens.end), tile, softmax);
        }
    }

    #[inline(always)]
    unsafe fn queries<V: Lanes>(&self, queries: Range<usize>, tile: Tile<E>, softmax: &mut Softmax) {
        let mut at = queries.start;
        while at < queries.end {
            let left = queries.end - at;
            unsafe {
                at += match left {
                    8.. if V::MANY_REGISTERS => self.attend::<V, 8>(at, tile, softmax),
                    4.. if V::MANY_REGISTERS => self.attend::<V, 4>(at, tile, softmax),
                    2.. => self.attend::<V, 2>(at, tile, softmax),
                    _ => self.attend::<V, 1>(at, tile, softmax),
                };
            }
        }
    }

    /// Adds one block to the softmax of queries `at..at + Q`.
    #[inline(always)]
    unsafe fn attend<V: Lanes, const Q: usize>(
        &self,
        at: usize,
        tile: Tile<E>,
        softmax: &mut Softmax,
    ) -> usize {
        unsafe {
            let scores = self.scores::<V, Q>(at, tile);
            let mut weights = [[0.0_f32; LANES]; Q];
            let mut corrections = [0.0_f32; LANES];
            for q in 0..Q {
                let before = softmax.largest[at + q];
                let largest = before.max(scores[q].fold_max());
                let weight =
                    math::exp(scores[q].sub(V::splat(largest))).first_or(tile.visible, V::splat(0.0));
                weight.store(weights[q].as_mut_ptr());
                corrections[q] = before - largest;
                softmax.largest[at + q] = largest;
            }
            math::exp(V::load(corrections.as_ptr())).store(corrections.as_mut_ptr());
            for q in 0..Q {
                let sum = V::load(weights[q].as_ptr()).fold();
                softmax.sum[at + q] = softmax.sum[at + q] * corrections[q] + sum;
            }
            self.accumulate::<V, Q>(at, tile, &weights, &corrections);
        }
        Q
    }

    /// Returns the scaled dot products with the block's 16 positions, minus infinity for invisible positions. Even and
    /// odd dimensions have separate accumulators.
    #[inline(always)]
    unsafe fn scores<V: Lanes, const Q: usize>(&self, at: usize, tile: Tile<E>) -> [V; Q] {
        let head_dim = self.arena.head_dim();
        let scale = 1.0 / (head_dim as f32).sqrt();
        unsafe {
            let mut queries = [self.queries; Q];
            for q in 0..Q {
                queries[q] = self.queries.add(self.offset(at + q));
            }
            let (mut even, mut odd) = ([V::splat(0.0); Q], [V::splat(0.0); Q]);
            for dim in (0..head_dim).step_by(2) {
                let keys = E::load::<V>(tile.keys.add(dim * BLOCK_TOKENS));
                let next = E::load::<V>(tile.keys.add((dim + 1) * BLOCK_TOKENS));
                for q in 0..Q {
                    even[q] = V::splat(*queries[q].add(dim)).mul_add(keys, even[q]);
                    odd[q] = V::splat(*queries[q].add(dim + 1)).mul_add(next, odd[q]);
                }
            }
            let mut scores = even;
            for q in 0..Q {
                let score = even[q].add(odd[q]).mul(V::splat(scale));
                scores[q] = score.first_or(tile.visible, V::splat(f32::NEG_INFINITY));
            }
            scores
        }
    }

    /// Computes `output = output * correction + sum over visible positions of weight * V`, in order of position.
    #[inline(always)]
    unsafe fn accumulate<V: Lanes, const Q: usize>(
        &self,
        at: usize,
        tile: Tile<E>,
        weights: &[[f32; LANES]; Q],
        corrections: &[f32; LANES],
    ) {
        let head_dim = self.arena.head_dim();
        for first in (0..head_dim).step_by(LANES) {
            let count = LANES.min(head_dim - first);
            unsafe {
                let mut sums = [V::splat(0.0); Q];
                for q in 0..Q {
                    let output = self.output.add(self.offset(at + q) + first);
                    sums[q] = load::<V, f32>(output, count).mul(V::splat(corrections[q]));
                }
                for place in 0..tile.visible {
                    let values = load::<V, E>(tile.values.add(place * head_dim + first), count);
                    for q in 0..Q {
                        sums[q] = V::splat(weights[q][place]).mul_add(values, sums[q]);
                    }
                }
                for q in 0..Q {
                    sums[q].store_first(self.output.add(self.offset(at + q) + first), count);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn each_result<V: Lanes>(&self, queries: usize, change: impl Fn(usize, V) -> V) {
        let head_dim = self.arena.head_dim();
        for query in 0..queries {
            for first in (0..head_dim).step_by(LANES) {
                let count = LANES.min(head_dim - first);
                unsafe {
                    let at = self.output.add(self.offset(query) + first);
                    change(query, V::load_first(at, count)).store_first(at, count);
                }
            }
        }
    }

    /// Returns the words from the first query to query `query`: by token, then by head.
    #[inline(always)]
    fn offset(&self, query: usize) -> usize {
        (query / self.heads) * self.stride + (query % self.heads) * self.arena.head_dim()
    }
}

/// Loads a whole vector if `count` allows: cheaper than a partial load on instruction sets without masks.
#[inline(always)]
unsafe fn load<V: Lanes, E: Element>(from: *const E, count: usize) -> V {
    unsafe { if count == LANES { E::load(from) } else { E::load_first(from, count) } }
}

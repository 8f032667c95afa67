//! One chunk's pass through one layer: the operations from which the model families build their layers.

use sluice_link::slab::Tensor;

use super::chunk::{AttentionTask, Chunk, TokenRange};
use super::step::{Linear, Rows, SendPtr, Step, Weights, at};
use crate::ops::attention::Attention;
use crate::ops::kv::{BLOCK_TOKENS, WriteKv};
use crate::rope::Rotate;
use crate::simd::product::Product;
use crate::simd::{Dot, Element};

/// A chunk in a layer. The residual stream and the rotary angles have a row for every token of the step; all other
/// values start at the first row of their buffer.
pub(crate) struct LayerPass<'s, 'a, E> {
    step: &'s Step<'a, E>,
    chunk: &'s Chunk,
}

impl<'s, 'a, E: Element> LayerPass<'s, 'a, E> {
    pub fn new(step: &'s Step<'a, E>, chunk: &'s Chunk) -> Self {
        LayerPass { step, chunk }
    }

    fn tokens(&self) -> usize {
        self.chunk.rows.len()
    }

    /// Returns the chunk's rows of the residual stream.
    pub fn residual(&self) -> Rows {
        let (start, row) = self.step.residual();
        (at((start, row), self.chunk.rows.start), row)
    }

    /// Returns the output of a norm.
    pub fn normed(&self) -> Rows {
        self.step.rows(self.step.layout.normed)
    }

    /// Returns the queries.
    pub fn queries(&self) -> Rows {
        self.step.rows(self.step.layout.queries)
    }

    /// Returns the keys before rounding.
    pub fn keys(&self) -> Rows {
        self.step.rows(self.step.layout.keys)
    }

    /// Returns the values before rounding.
    pub fn values(&self) -> Rows {
        self.step.rows(self.step.layout.values)
    }

    /// Returns the output of attention.
    pub fn attended(&self) -> Rows {
        self.step.rows(self.step.layout.attention_output)
    }

    /// Returns the inner values of the MLP.
    pub fn ffn_hidden(&self) -> Rows {
        self.step.rows(self.step.layout.ffn_hidden)
    }

    /// Returns the weights of `layer`.
    pub fn layer_weights(&self, layer: usize) -> Weights<'a, E> {
        self.step.layer_weights(layer)
    }

    /// Splits the chunk's tokens over the threads; `cost` is the work per token in multiply-adds.
    fn each_token(&self, cost: usize, work: impl Fn(usize) + Sync) {
        const TOKENS: usize = 8;
        self.step.model.threads.for_each(self.tokens().div_ceil(TOKENS), cost * self.tokens(), |task| {
            (task * TOKENS..((task + 1) * TOKENS).min(self.tokens())).for_each(&work);
        });
    }

    /// Normalizes the residual stream (LayerNorm if the slab has a bias).
    pub fn norm(&self, weights: Weights<'_, E>, weight: Tensor, bias: Tensor) {
        // `SendPtr` lets the raw pointers cross threads.
        let (weight, bias) = (SendPtr(weights.get(weight)), SendPtr(weights.find(bias)));
        self.each_token(2 * self.step.model.spec.hidden as usize, |token| {
            self.step.norm_row(
                (at(self.residual(), token), at(self.normed(), token)),
                weight.get(),
                bias.get(),
            );
        });
    }

    /// Multiplies `input` with each of `linears` in one parallel section. `input` is narrowed in place, so no other
    /// product may read it.
    pub fn multiply(&self, weights: Weights<'_, E>, input: Rows, linears: &[Linear]) {
        self.narrow(weights, input, linears[0].matrix);
        let products: Vec<[Product<E>; 1]> =
            linears.iter().map(|linear| [self.product(weights, input, linear)]).collect();
        self.step.run_products(&products);
    }

    /// Multiplies `input` with `first`, then with `second` into the same rows (gated MLP). `input` is narrowed as in
    /// [`LayerPass::multiply`].
    pub fn multiply_twice(&self, weights: Weights<'_, E>, input: Rows, [first, second]: [&Linear; 2]) {
        self.narrow(weights, input, first.matrix);
        let product = |linear| self.product(weights, input, linear);
        self.step.run_products(&[[product(first), product(second)]]);
    }

    fn narrow(&self, weights: Weights<'_, E>, input: Rows, matrix: Tensor) {
        if E::Dot::NARROWS {
            let (width, input) = (weights.columns(matrix), SendPtr(input));
            self.each_token(width, |token| self.step.narrow_row(at(input.get(), token), width));
        }
    }

    fn product(&self, weights: Weights<'_, E>, input: Rows, linear: &Linear) -> Product<E> {
        self.step.product(weights, (input, self.tokens()), linear)
    }

    /// Rotates queries and keys by their positions.
    pub fn rotate(&self) {
        let spec = &self.step.model.spec;
        let head_dim = spec.head_dim as usize;
        self.each_token(2 * head_dim * (spec.heads + spec.kv_heads) as usize, |token| {
            for (values, heads) in [(self.queries(), spec.heads), (self.keys(), spec.kv_heads)] {
                let (values, heads) = (at(values, token), heads as usize);
                let angles: *const f32 = at(self.step.angles(), self.chunk.rows.start + token);
                // SAFETY: the layout gives each token its angles and `heads * head_dim` words.
                unsafe { self.step.model.isa.run(Rotate { angles, values, heads, head_dim }) }
            }
        });
    }

    /// Rounds K and V to the cache's dtype and writes them to the layer's blocks, only at the step's positions.
    pub fn write_kv(&self, layer: usize) {
        let heads = self.step.model.spec.kv_heads as usize;
        let cost = 2 * self.tokens() * heads * self.step.model.spec.head_dim as usize;
        self.step.model.threads.for_each(self.chunk.ranges.len() * heads, 4 * cost, |task| {
            self.write_head(layer, self.chunk.ranges[task / heads], task % heads);
        });
    }

    fn write_head(&self, layer: usize, piece: TokenRange, head: usize) {
        let head_dim = self.step.arena.head_dim();
        let (start, end) = (piece.start, piece.start + piece.tokens);
        for kv_block in start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS) {
            let first = start.max(kv_block * BLOCK_TOKENS);
            let last = end.min((kv_block + 1) * BLOCK_TOKENS);
            let row = piece.row + first - start;
            let id = self.layer_block_id(piece, layer, kv_block);
            let write = WriteKv {
                layer_block_keys: self.step.arena.keys(id, head),
                layer_block_values: self.step.arena.values(id, head),
                places: first % BLOCK_TOKENS..last - kv_block * BLOCK_TOKENS,
                keys: at(self.keys(), row).wrapping_add(head * head_dim),
                values: at(self.values(), row).wrapping_add(head * head_dim),
                stride: self.keys().1,
                head_dim,
            };
            // SAFETY: the block is backed and within the arena (checked); only this task writes this head's part of the
            // block.
            unsafe { self.step.model.isa.run(write) }
        }
    }

    /// Computes the attention of all tokens over the layer's blocks.
    pub fn attend(&self, layer: usize) {
        let spec = &self.step.model.spec;
        let seen = |piece: &TokenRange| piece.tokens * (piece.start + piece.tokens);
        let seen: usize = self.chunk.ranges.iter().map(seen).sum();
        let cost = 2 * seen * (spec.heads * spec.head_dim) as usize;
        self.step.model.threads.for_each(self.chunk.attention.len(), cost, |task| {
            self.attend_task(layer, &self.chunk.attention[task]);
        });
    }

    fn attend_task(&self, layer: usize, task: &AttentionTask) {
        let spec = &self.step.model.spec;
        let row = task.range.row + task.tokens.start;
        let head = task.kv_head * (spec.heads / spec.kv_heads) as usize + task.heads.start;
        let word = head * spec.head_dim as usize;
        let start = task.range.start;
        let attention = Attention {
            arena: &self.step.arena,
            layer_block: |kv_block| self.layer_block_id(task.range, layer, kv_block),
            kv_head: task.kv_head,
            tokens: start + task.tokens.start..start + task.tokens.end,
            heads: task.heads.len(),
            queries: at(self.queries(), row).wrapping_add(word),
            output: at(self.attended(), row).wrapping_add(word),
            stride: self.queries().1,
        };
        // SAFETY: blocks up to the last position were checked and are written; tasks write disjoint results.
        unsafe { self.step.model.isa.run(attention) }
    }

    fn layer_block_id(&self, piece: TokenRange, layer: usize, kv_block: usize) -> u32 {
        let layer_blocks = &self.step.batch.sequences[piece.sequence].layer_blocks;
        layer_blocks.id(layer, kv_block).expect("the block table was checked")
    }
}

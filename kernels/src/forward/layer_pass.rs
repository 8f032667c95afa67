//! One chunk's pass through one layer on the CPU.

use sluice_link::slab::Tensor;

use super::chunk::{AttentionTask, Chunk, TokenRange};
use super::layer_ops::{LayerOps, Linear, Value};
use super::step::{Rows, SendPtr, Step, Weights, at};
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
    layer: usize,
}

impl<'s, 'a, E: Element> LayerPass<'s, 'a, E> {
    pub fn new(step: &'s Step<'a, E>, chunk: &'s Chunk, layer: usize) -> Self {
        LayerPass { step, chunk, layer }
    }

    fn tokens(&self) -> usize {
        self.chunk.rows.len()
    }

    /// Returns the chunk's rows of a value.
    fn rows(&self, value: Value) -> Rows {
        let layout = &self.step.layout;
        let place = match value {
            Value::Residual => {
                let (start, row) = self.step.residual();
                return (at((start, row), self.chunk.rows.start), row);
            }
            Value::Normed => layout.normed,
            Value::Queries => layout.queries,
            Value::Keys => layout.keys,
            Value::Values => layout.values,
            Value::AttentionOutput => layout.attention_output,
            Value::FfnHidden => layout.ffn_hidden,
        };
        self.step.rows(place)
    }

    /// Splits the chunk's tokens over the threads; `cost` is the work per token in multiply-adds.
    fn each_token(&self, cost: usize, work: impl Fn(usize) + Sync) {
        const TOKENS: usize = 8;
        self.step.model.threads.for_each(self.tokens().div_ceil(TOKENS), cost * self.tokens(), |task| {
            (task * TOKENS..((task + 1) * TOKENS).min(self.tokens())).for_each(&work);
        });
    }

    fn weights(&self) -> Weights<'a, E> {
        self.step.layer_weights(self.layer)
    }

    /// Converts `input` in place to the format in which products with `matrix` read it.
    fn narrow(&self, input: Rows, matrix: Tensor) {
        if E::Dot::NARROWS {
            let (width, input) = (self.weights().columns(matrix), SendPtr(input));
            self.each_token(width, |token| self.step.narrow_row(at(input.get(), token), width));
        }
    }

    fn product(&self, input: Rows, linear: &Linear) -> Product<E> {
        let Linear { matrix, bias, output, epilogue } = *linear;
        let product = (matrix, bias, epilogue);
        self.step.product(self.weights(), (input, self.tokens()), product, self.rows(output))
    }

    fn write_head(&self, piece: TokenRange, head: usize) {
        let head_dim = self.step.arena.head_dim();
        let (keys, values) = (self.rows(Value::Keys), self.rows(Value::Values));
        let (start, end) = (piece.start, piece.start + piece.tokens);
        for kv_block in start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS) {
            let first = start.max(kv_block * BLOCK_TOKENS);
            let last = end.min((kv_block + 1) * BLOCK_TOKENS);
            let row = piece.row + first - start;
            let id = self.layer_block_id(piece, kv_block);
            let write = WriteKv {
                layer_block_keys: self.step.arena.keys(id, head),
                layer_block_values: self.step.arena.values(id, head),
                places: first % BLOCK_TOKENS..last - kv_block * BLOCK_TOKENS,
                keys: at(keys, row).wrapping_add(head * head_dim),
                values: at(values, row).wrapping_add(head * head_dim),
                stride: keys.1,
                head_dim,
            };
            // SAFETY: the block is backed and within the arena (checked); only this task writes this head's part of the
            // block.
            unsafe { self.step.model.isa.run(write) }
        }
    }

    fn attend_task(&self, task: &AttentionTask) {
        let spec = &self.step.model.spec;
        let row = task.range.row + task.tokens.start;
        let head = task.kv_head * (spec.heads / spec.kv_heads) as usize + task.heads.start;
        let word = head * spec.head_dim as usize;
        let (queries, output) = (self.rows(Value::Queries), self.rows(Value::AttentionOutput));
        let start = task.range.start;
        let attention = Attention {
            arena: &self.step.arena,
            layer_block: |kv_block| self.layer_block_id(task.range, kv_block),
            kv_head: task.kv_head,
            tokens: start + task.tokens.start..start + task.tokens.end,
            heads: task.heads.len(),
            queries: at(queries, row).wrapping_add(word),
            output: at(output, row).wrapping_add(word),
            stride: queries.1,
        };
        // SAFETY: blocks up to the last position were checked and are written; tasks write disjoint results.
        unsafe { self.step.model.isa.run(attention) }
    }

    fn layer_block_id(&self, piece: TokenRange, kv_block: usize) -> u32 {
        let layer_blocks = &self.step.batch.sequences[piece.sequence].layer_blocks;
        layer_blocks.id(self.layer, kv_block).expect("the block table was checked")
    }
}

impl<E: Element> LayerOps for LayerPass<'_, '_, E> {
    fn norm(&mut self, weight: Tensor, bias: Tensor) {
        let (weights, input, output) = (self.weights(), self.rows(Value::Residual), self.rows(Value::Normed));
        // `SendPtr` lets the raw pointers cross threads.
        let vectors = SendPtr((weights.get(weight), weights.find(bias)));
        let rows = SendPtr((input, output));
        self.each_token(2 * self.step.model.spec.hidden as usize, |token| {
            let ((weight, bias), (input, output)) = (vectors.get(), rows.get());
            self.step.norm_row((at(input, token), at(output, token)), weight, bias);
        });
    }

    /// Runs all products in one parallel section. `input` is narrowed in place.
    fn multiply(&mut self, input: Value, linears: &[Linear]) {
        let input = self.rows(input);
        self.narrow(input, linears[0].matrix);
        let products: Vec<[Product<E>; 1]> =
            linears.iter().map(|linear| [self.product(input, linear)]).collect();
        self.step.run_products(&products);
    }

    fn multiply_gated(&mut self, input: Value, gate: &Linear, up: &Linear) {
        let input = self.rows(input);
        self.narrow(input, gate.matrix);
        self.step.run_products(&[[self.product(input, gate), self.product(input, up)]]);
    }

    fn rotate(&mut self) {
        let spec = &self.step.model.spec;
        let head_dim = spec.head_dim as usize;
        let (queries, keys) = (self.rows(Value::Queries), self.rows(Value::Keys));
        let heads = SendPtr([(queries, spec.heads), (keys, spec.kv_heads)]);
        self.each_token(2 * head_dim * (spec.heads + spec.kv_heads) as usize, |token| {
            for (values, heads) in heads.get() {
                let (values, heads) = (at(values, token), heads as usize);
                let angles: *const f32 = at(self.step.angles(), self.chunk.rows.start + token);
                // SAFETY: the layout gives each token its angles and `heads * head_dim` words.
                unsafe { self.step.model.isa.run(Rotate { angles, values, heads, head_dim }) }
            }
        });
    }

    fn write_kv(&mut self) {
        let heads = self.step.model.spec.kv_heads as usize;
        let cost = 2 * self.tokens() * heads * self.step.model.spec.head_dim as usize;
        self.step.model.threads.for_each(self.chunk.ranges.len() * heads, 4 * cost, |task| {
            self.write_head(self.chunk.ranges[task / heads], task % heads);
        });
    }

    fn attend(&mut self) {
        let spec = &self.step.model.spec;
        let seen = |piece: &TokenRange| piece.tokens * (piece.start + piece.tokens);
        let seen: usize = self.chunk.ranges.iter().map(seen).sum();
        let cost = 2 * seen * (spec.heads * spec.head_dim) as usize;
        self.step.model.threads.for_each(self.chunk.attention.len(), cost, |task| {
            self.attend_task(&self.chunk.attention[task]);
        });
    }
}

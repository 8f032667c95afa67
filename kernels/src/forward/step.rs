//! One step over one batch: the pieces from which the families build their layers.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use sluice_link::model::Family;
use sluice_link::slab::{Slab, Tensor};

use super::activation::Layout;
use super::{BLOCK_TOKENS, Batch, ForwardError, LayerHooks, Model, RangeParts, Sequence};
use crate::ops::attention::{Attention, MAX_QUERIES};
use crate::ops::embed::Embed;
use crate::ops::kv::{Arena, Write};
use crate::ops::norm::Norm;
use crate::rope::{self, Rotate};
use crate::simd::Element;
use crate::simd::matmul::{Epilogue, PANEL_ROWS, Product};
use crate::{llama, opt};

/// A value of the step: rows of f32 in the activation arena (start, words between two rows).
pub(crate) type Rows = (*mut f32, usize);

/// Tensors of one slab.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a, E> {
    slab: &'a Slab,
    base: *const E,
}

impl<E> Weights<'_, E> {
    /// A tensor's first element, if the slab has it.
    pub fn find(&self, tensor: Tensor) -> Option<*const E> {
        let place = self.slab.place(tensor)?;
        Some(self.base.wrapping_byte_add(place.offset_bytes as usize))
    }

    /// A tensor that every model of the family has.
    pub fn get(&self, tensor: Tensor) -> *const E {
        self.find(tensor).unwrap_or_else(|| panic!("the slab layout has {tensor:?} in this family"))
    }

    fn rows(&self, tensor: Tensor) -> usize {
        self.slab.place(tensor).map_or(0, |place| place.rows as usize)
    }
}

/// A matrix to multiply with: where its weights and bias are, where the result goes.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub matrix: Tensor,
    pub bias: Tensor,
    pub output: Rows,
    pub epilogue: Epilogue,
}

/// Queries of one attention task: some heads of one K and V head, some tokens of one sequence.
struct AttentionTask {
    sequence: usize,
    kv_head: usize,
    /// Among the query heads that share the K and V head.
    heads: Range<usize>,
    /// Among the sequence's tokens of this step.
    tokens: Range<usize>,
}

/// A step in progress.
pub(crate) struct Step<'a, E> {
    pub model: &'a Model,
    parts: &'a RangeParts,
    batch: &'a Batch<'a>,
    layout: Layout,
    arena: Arena<E>,
    tokens: usize,
    /// Index of each sequence's first token in the step.
    firsts: Vec<usize>,
    attention: Vec<AttentionTask>,
}

// SAFETY: the pointers are valid from any thread by the contract of `Ranges::new`; every parallel section splits its
// writes by output element.
unsafe impl<E: Element> Sync for Step<'_, E> {}

impl<'a, E: Element> Step<'a, E> {
    pub fn new(model: &'a Model, parts: &'a RangeParts, batch: &'a Batch<'a>, layout: Layout) -> Self {
        let arena = Arena::new(&model.spec, parts.kv, parts.kv_blocks, model.chunk_bytes);
        let mut tokens = 0;
        let firsts = batch.sequences.iter().map(|sequence| {
            tokens += sequence.tokens.len();
            tokens - sequence.tokens.len()
        });
        let firsts = firsts.collect();
        let attention = attention_tasks(model, batch);
        Step { model, parts, batch, layout, arena, tokens, firsts, attention }
    }

    /// Runs all layers, then the head.
    pub fn run<H: LayerHooks>(&self, hooks: &mut H) -> Result<(), ForwardError> {
        self.model.team.enter(|| {
            self.embed();
            for layer in 0..self.parts.layers.len() {
                if let ControlFlow::Break(()) = hooks.before_layer(layer) {
                    return Err(ForwardError::Aborted { layer });
                }
                let started = Instant::now();
                match self.model.spec.family {
                    Family::Llama => llama::layer(self, layer),
                    Family::Opt => opt::layer(self, layer),
                }
                hooks.after_layer(layer, started.elapsed().as_nanos() as u64);
            }
            self.head();
            Ok(())
        })
    }

    fn rows(&self, (at, row): (usize, usize)) -> Rows {
        (self.parts.activations.cast::<f32>().wrapping_add(at), row)
    }

    /// Residual stream.
    pub fn stream(&self) -> Rows {
        self.rows(self.layout.stream)
    }

    /// What a norm leaves.
    pub fn normed(&self) -> Rows {
        self.rows(self.layout.normed)
    }

    /// Queries.
    pub fn queries(&self) -> Rows {
        self.rows(self.layout.queries)
    }

    /// Keys before rounding.
    pub fn keys(&self) -> Rows {
        self.rows(self.layout.keys)
    }

    /// Values before rounding.
    pub fn values(&self) -> Rows {
        self.rows(self.layout.values)
    }

    /// What attention leaves.
    pub fn attended(&self) -> Rows {
        self.rows(self.layout.attended)
    }

    /// Inner values of the MLP.
    pub fn inner(&self) -> Rows {
        self.rows(self.layout.inner)
    }

    /// Weights of `layer`.
    pub fn layer_weights(&self, layer: usize) -> Weights<'a, E> {
        Weights { slab: &self.model.slabs.layer, base: self.parts.layers[layer].cast() }
    }

    fn global_weights(&self) -> Weights<'a, E> {
        Weights { slab: &self.model.slabs.global, base: self.parts.global.cast() }
    }

    /// Splits the step's tokens over the team; `cost` is multiply-adds (or as dear) for each token.
    fn each_token(&self, cost: usize, work: impl Fn(usize) + Sync) {
        const TOKENS: usize = 8;
        self.model.team.each(self.tokens.div_ceil(TOKENS), cost * self.tokens, |task| {
            (task * TOKENS..((task + 1) * TOKENS).min(self.tokens)).for_each(&work);
        });
    }

    fn each_sequence(&self) -> impl Iterator<Item = (usize, &'a Sequence<'a>)> {
        self.firsts.iter().copied().zip(self.batch.sequences)
    }

    /// Fills the residual stream with embeddings, and the table of angles.
    fn embed(&self) {
        let weights = self.global_weights();
        let (table, positions) = (weights.get(Tensor::Embedding), weights.find(Tensor::Positions));
        let width = self.model.spec.hidden as usize;
        for (first, sequence) in self.each_sequence() {
            for (index, token) in sequence.tokens.iter().enumerate() {
                let position = sequence.start + index as u32;
                let row = |table: *const E, row: u32| table.wrapping_add(row as usize * width);
                let embed = Embed {
                    token: row(table, *token),
                    // OPT's table begins with two rows that no position uses.
                    position: positions.map(|table| row(table, position + 2)),
                    width,
                    output: at(self.stream(), first + index),
                };
                // SAFETY: token and position were checked to be rows of the tables.
                unsafe { self.model.isa.run(embed) }
                self.fill_angles(first + index, position);
            }
        }
    }

    fn fill_angles(&self, token: usize, position: u32) {
        if self.model.spec.family == Family::Llama {
            let to = at(self.rows(self.layout.angles), token);
            // SAFETY: the layout gives each token a row of `head_dim` words, and nobody else holds it now.
            let to = unsafe { std::slice::from_raw_parts_mut(to, self.model.spec.head_dim as usize) };
            rope::angles(&self.model.frequencies, position, to);
        }
    }

    /// Normalises the residual stream (LayerNorm where the slab has a bias).
    pub fn norm(&self, weights: Weights<'_, E>, weight: Tensor, bias: Tensor) {
        // Addresses travel as numbers: a raw pointer does not cross threads.
        let (weight, bias) = (Shared(weights.get(weight)), Shared(weights.find(bias)));
        self.each_token(2 * self.model.spec.hidden as usize, |token| {
            self.norm_row((at(self.stream(), token), at(self.normed(), token)), weight.get(), bias.get());
        });
    }

    fn norm_row(&self, (input, output): (*const f32, *mut f32), weight: *const E, bias: Option<*const E>) {
        let spec = &self.model.spec;
        let norm = Norm { input, output, width: spec.hidden as usize, weight, bias, epsilon: spec.norm_eps };
        // SAFETY: rows of `hidden` words by the layout, vectors of `hidden` elements by the slab.
        unsafe { self.model.isa.run(norm) }
    }

    /// Multiplies `input` with each of `linears` in one parallel section.
    pub fn multiply(&self, weights: Weights<'_, E>, input: Rows, linears: &[Linear]) {
        let products: Vec<[Product<E>; 1]> =
            linears.iter().map(|linear| [self.product(weights, input, linear)]).collect();
        self.run_products(&products);
    }

    /// Multiplies `input` with `first`, then with `second` into the same rows (gated MLP).
    pub fn multiply_twice(&self, weights: Weights<'_, E>, input: Rows, [first, second]: [&Linear; 2]) {
        let product = |linear| self.product(weights, input, linear);
        self.run_products(&[[product(first), product(second)]]);
    }

    fn product(&self, weights: Weights<'_, E>, input: Rows, linear: &Linear) -> Product<E> {
        let place = weights.slab.place(linear.matrix).expect("every matrix of a family is in its slab");
        Product {
            weights: weights.get(linear.matrix),
            bias: weights.find(linear.bias),
            rows: 0..weights.rows(linear.matrix),
            k: place.columns as usize,
            input: (input.0, input.1),
            output: linear.output,
            tokens: 0..self.tokens,
            epilogue: linear.epilogue,
            scratch: std::ptr::null_mut(),
        }
    }

    /// Splits chains of products over the team by rows: a chain's products have the same rows and run in order.
    fn run_products<const N: usize>(&self, chains: &[[Product<E>; N]]) {
        let rows: usize = chains.iter().map(|chain| chain[0].rows.len()).sum();
        let work = |chain: &[Product<E>; N]| {
            chain.iter().map(|product| product.rows.len() * product.k * product.tokens.len()).sum::<usize>()
        };
        let cost = chains.iter().map(work).sum();
        let grain = row_grain(rows, self.model.team.threads(), self.tokens);
        let pieces = |chain: &[Product<E>; N]| chain[0].rows.len().div_ceil(grain);
        let chains = Shared(chains);
        self.model.team.each(chains.get().iter().map(pieces).sum(), cost, |task| {
            let mut piece = task;
            for chain in chains.get() {
                if piece < pieces(chain) {
                    return chain.iter().for_each(|product| self.run_piece(product, piece, grain));
                }
                piece -= pieces(chain);
            }
        });
    }

    fn run_piece(&self, product: &Product<E>, piece: usize, grain: usize) {
        let rows = &product.rows;
        let first = rows.start + piece * grain;
        let scratch = at(self.rows(self.layout.scratch), self.model.team.member());
        let piece = Product { rows: first..(first + grain).min(rows.end), scratch, ..product.clone() };
        // SAFETY: matrices have the slab's sizes, values the layout's; pieces have rows of their own and each
        // member of the team its own scratch.
        unsafe { self.model.isa.run(piece) }
    }

    /// Turns queries and keys by their positions.
    pub fn rotate(&self) {
        let spec = &self.model.spec;
        let head_dim = spec.head_dim as usize;
        self.each_token(2 * head_dim * (spec.heads + spec.kv_heads) as usize, |token| {
            for (values, heads) in [(self.queries(), spec.heads), (self.keys(), spec.kv_heads)] {
                let (values, heads) = (at(values, token), heads as usize);
                let angles: *const f32 = at(self.rows(self.layout.angles), token);
                // SAFETY: the layout gives each token its angles and `heads * head_dim` words.
                unsafe { self.model.isa.run(Rotate { angles, values, heads, head_dim }) }
            }
        });
    }

    /// Rounds K and V to the cache's dtype and writes them to the layer's blocks, at the step's positions only.
    pub fn write_kv(&self, layer: usize) {
        let heads = self.model.spec.kv_heads as usize;
        let cost = 2 * self.tokens * heads * self.model.spec.head_dim as usize;
        self.model.team.each(self.batch.sequences.len() * heads, 4 * cost, |task| {
            self.write_head(layer, task / heads, task % heads);
        });
    }

    fn write_head(&self, layer: usize, sequence: usize, head: usize) {
        let part = &self.batch.sequences[sequence];
        let head_dim = self.arena.head_dim();
        let (start, end) = (part.start as usize, part.start as usize + part.tokens.len());
        for column in start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS) {
            let first = start.max(column * BLOCK_TOKENS);
            let last = end.min((column + 1) * BLOCK_TOKENS);
            let token = self.firsts[sequence] + first - start;
            let id = block_id(part, layer, column);
            let write = Write {
                block_keys: self.arena.keys(id, head),
                block_values: self.arena.values(id, head),
                places: first % BLOCK_TOKENS..last - column * BLOCK_TOKENS,
                keys: at(self.keys(), token).wrapping_add(head * head_dim),
                values: at(self.values(), token).wrapping_add(head * head_dim),
                stride: self.keys().1,
                head_dim,
            };
            // SAFETY: the block is backed and below the arena's end (checked); this task alone writes the head's
            // part of it.
            unsafe { self.model.isa.run(write) }
        }
    }

    /// Attention of all tokens over the layer's blocks.
    pub fn attend(&self, layer: usize) {
        let spec = &self.model.spec;
        let seen = |s: &Sequence<'_>| s.tokens.len() * (s.start as usize + s.tokens.len());
        let seen: usize = self.batch.sequences.iter().map(seen).sum();
        let cost = 2 * seen * (spec.heads * spec.head_dim) as usize;
        self.model.team.each(self.attention.len(), cost, |task| {
            self.attend_task(layer, &self.attention[task]);
        });
    }

    fn attend_task(&self, layer: usize, task: &AttentionTask) {
        let spec = &self.model.spec;
        let part = &self.batch.sequences[task.sequence];
        let token = self.firsts[task.sequence] + task.tokens.start;
        let head = task.kv_head * (spec.heads / spec.kv_heads) as usize + task.heads.start;
        let word = head * spec.head_dim as usize;
        let start = part.start as usize;
        let attention = Attention {
            arena: &self.arena,
            block: |column| block_id(part, layer, column),
            kv_head: task.kv_head,
            tokens: start + task.tokens.start..start + task.tokens.end,
            heads: task.heads.len(),
            queries: at(self.queries(), token).wrapping_add(word),
            output: at(self.attended(), token).wrapping_add(word),
            stride: self.queries().1,
        };
        // SAFETY: blocks up to the last position were checked and written up to it; tasks have results of their own.
        unsafe { self.model.isa.run(attention) }
    }

    /// Final norm and head of the rows wanted.
    fn head(&self) {
        let weights = self.global_weights();
        let (norm, bias) = (weights.get(Tensor::FinalNorm), weights.find(Tensor::FinalNormBias));
        let last = self.rows(self.layout.last);
        let mut rows = 0;
        for (first, sequence) in self.each_sequence() {
            let end = first + sequence.tokens.len();
            for token in end - sequence.logit_rows..end {
                self.norm_row((at(self.stream(), token), at(last, rows)), norm, bias);
                rows += 1;
            }
        }
        if rows > 0 {
            let tied = self.model.spec.tied_embeddings;
            let matrix = if tied { Tensor::Embedding } else { Tensor::Head };
            let output = self.rows(self.layout.logits);
            // No family has a bias here; a tensor of layers is in no global slab.
            let head = Linear { matrix, bias: Tensor::UpBias, output, epilogue: Epilogue::Store };
            let product = Product { tokens: 0..rows, ..self.product(weights, last, &head) };
            self.run_products(&[[product]]);
        }
    }
}

/// Row `index` of a value.
fn at((start, row): Rows, index: usize) -> *mut f32 {
    start.wrapping_add(index * row)
}

fn block_id(sequence: &Sequence<'_>, layer: usize, column: usize) -> u32 {
    sequence.blocks.id(layer, column).expect("the block table was checked")
}

/// Rows of a task: some tasks for each thread, whole tiles, whole panels where tokens are many.
fn row_grain(rows: usize, threads: usize, tokens: usize) -> usize {
    const TASKS_PER_THREAD: usize = 4;
    let unit = if tokens > 8 { PANEL_ROWS } else { 8 };
    rows.div_ceil(threads * TASKS_PER_THREAD).next_multiple_of(unit)
}

fn attention_tasks(model: &Model, batch: &Batch<'_>) -> Vec<AttentionTask> {
    let spec = &model.spec;
    let group = (spec.heads / spec.kv_heads) as usize;
    let heads = group.min(MAX_QUERIES);
    let tokens = MAX_QUERIES / heads;
    let mut tasks = Vec::new();
    for (sequence, part) in batch.sequences.iter().enumerate() {
        for kv_head in 0..spec.kv_heads as usize {
            for head in (0..group).step_by(heads) {
                for token in (0..part.tokens.len()).step_by(tokens) {
                    let heads = head..(head + heads).min(group);
                    let tokens = token..(token + tokens).min(part.tokens.len());
                    tasks.push(AttentionTask { sequence, kv_head, heads, tokens });
                }
            }
        }
    }
    tasks
}

/// A value whose pointers may be read by the whole team.
struct Shared<T>(T);

// SAFETY: only pointers to weights and values of a step travel in it, valid from any thread as for `Step`.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(&self) -> T {
        self.0
    }
}

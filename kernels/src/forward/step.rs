//! A step over one batch: its rows, weights and products, the embeddings and the head.

use sluice_link::activation::Layout;
use sluice_link::model::Family;
use sluice_link::slab::{Slab, Tensor};

use super::chunk::{Chunk, chunks};
use super::{Batch, Model, RangeParts, Sequence};
use crate::ops::embed::Embed;
use crate::ops::kv::KvArena;
use crate::ops::norm::Norm;
use crate::rope;
use crate::simd::matmul::Narrow;
use crate::simd::product::{Epilogue, PANEL_ROWS, Product};
use crate::simd::{Dot, Element};

/// A value of the step: rows of f32 in the activation arena (start, words from one row to the next).
pub(crate) type Rows = (*mut f32, usize);

/// The tensors of one slab.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a, E> {
    slab: &'a Slab,
    base: *const E,
}

impl<E> Weights<'_, E> {
    /// Returns a tensor's first element, if the slab has the tensor.
    pub fn find(&self, tensor: Tensor) -> Option<*const E> {
        let place = self.slab.span(tensor)?;
        Some(self.base.wrapping_byte_add(place.offset_bytes as usize))
    }

    /// Returns the first element of a tensor that every model of the family has.
    pub fn get(&self, tensor: Tensor) -> *const E {
        self.find(tensor).unwrap_or_else(|| panic!("the slab layout has {tensor:?} in this family"))
    }

    fn rows(&self, tensor: Tensor) -> usize {
        self.slab.span(tensor).map_or(0, |place| place.rows as usize)
    }

    /// Returns the number of inputs of a matrix.
    pub(super) fn columns(&self, tensor: Tensor) -> usize {
        self.slab.span(tensor).map_or(0, |place| place.columns as usize)
    }
}

/// A step in progress.
pub(crate) struct Step<'a, E> {
    pub model: &'a Model,
    pub(super) parts: &'a RangeParts,
    pub(super) batch: &'a Batch<'a>,
    pub(super) layout: Layout,
    pub(super) arena: KvArena<E>,
    pub(super) chunks: Vec<Chunk>,
}

// SAFETY: the pointers are valid from any thread by the contract of `Ranges::new`; every parallel section splits its
// writes by output element.
unsafe impl<E: Element> Sync for Step<'_, E> {}

impl<'a, E: Element> Step<'a, E> {
    pub fn new(model: &'a Model, parts: &'a RangeParts, batch: &'a Batch<'a>, layout: Layout) -> Self {
        let arena = KvArena::new(&model.spec, parts.kv, parts.layer_blocks, model.chunk_bytes);
        let chunks = chunks(&model.spec, batch, model.chunk_tokens as usize);
        Step { model, parts, batch, layout, arena, chunks }
    }

    pub(super) fn rows(&self, (at, row): (usize, usize)) -> Rows {
        (self.parts.activations.cast::<f32>().wrapping_add(at), row)
    }

    /// Returns the residual stream of the whole step.
    pub(super) fn residual(&self) -> Rows {
        self.rows(self.layout.residual)
    }

    /// Returns the cosines and sines of the whole step.
    pub(super) fn angles(&self) -> Rows {
        self.rows(self.layout.rope_angles)
    }

    /// Returns the weights of `layer`.
    pub(super) fn layer_weights(&self, layer: usize) -> Weights<'a, E> {
        Weights { slab: &self.model.slabs.layer, base: self.parts.layers[layer].cast() }
    }

    fn global_weights(&self) -> Weights<'a, E> {
        Weights { slab: &self.model.slabs.global, base: self.parts.global.cast() }
    }

    /// Returns the sequences, each with the row of its first token.
    fn each_sequence(&self) -> impl Iterator<Item = (usize, &'a Sequence<'a>)> {
        let ends = self.batch.sequences.iter().scan(0, |row, sequence| {
            *row += sequence.tokens.len();
            Some(*row)
        });
        ends.zip(self.batch.sequences).map(|(end, sequence)| (end - sequence.tokens.len(), sequence))
    }

    /// Fills the residual stream with embeddings, and the table of rotary angles.
    pub(super) fn embed(&self) {
        let weights = self.global_weights();
        let (table, positions) = (weights.get(Tensor::Embedding), weights.find(Tensor::Positions));
        let width = self.model.spec.hidden as usize;
        for (first, sequence) in self.each_sequence() {
            for (index, token) in sequence.tokens.iter().enumerate() {
                let position = sequence.start + index as u32;
                let row = |table: *const E, row: u32| table.wrapping_add(row as usize * width);
                let embed = Embed {
                    token: row(table, *token),
                    // OPT's table starts with two unused rows.
                    position: positions.map(|table| row(table, position + 2)),
                    width,
                    output: at(self.residual(), first + index),
                };
                // SAFETY: the check found token and position within the tables.
                unsafe { self.model.isa.run(embed) }
                self.fill_angles(first + index, position);
            }
        }
    }

    fn fill_angles(&self, token: usize, position: u32) {
        if self.model.spec.family == Family::Llama {
            let to = at(self.angles(), token);
            // SAFETY: the layout gives each token a row of `head_dim` words, and no other reference to it exists now.
            let to = unsafe { std::slice::from_raw_parts_mut(to, self.model.spec.head_dim as usize) };
            rope::angles(&self.model.frequencies, position, to);
        }
    }

    pub(super) fn norm_row(
        &self,
        (input, output): (*const f32, *mut f32),
        weight: *const E,
        bias: Option<*const E>,
    ) {
        let spec = &self.model.spec;
        let norm = Norm { input, output, width: spec.hidden as usize, weight, bias, epsilon: spec.norm_eps };
        // SAFETY: the layout gives rows of `hidden` words, the slab vectors of `hidden` elements.
        unsafe { self.model.isa.run(norm) }
    }

    /// Converts `width` f32 numbers of a row in place to the format in which products read their input.
    pub(super) fn narrow_row(&self, row: *mut f32, width: usize) {
        if E::Dot::NARROWS {
            // SAFETY: the layout gives rows of `width` words; only this task uses the row.
            unsafe { self.model.isa.run(Narrow { row, width }) }
        }
    }

    /// Returns a product over the first `tokens` rows of `input`, which must be narrowed, into the rows `output`.
    pub(super) fn product(
        &self,
        weights: Weights<'_, E>,
        (input, tokens): (Rows, usize),
        (matrix, bias, epilogue): (Tensor, Tensor, Epilogue),
        output: Rows,
    ) -> Product<E> {
        let place = weights.slab.span(matrix).expect("every matrix of a family is in its slab");
        Product {
            weights: weights.get(matrix),
            bias: weights.find(bias),
            rows: 0..weights.rows(matrix),
            k: place.columns as usize,
            input: (input.0, input.1),
            output,
            tokens: 0..tokens,
            epilogue,
            scratch: std::ptr::null_mut(),
        }
    }

    /// Splits chains of products over the threads by rows. The products of a chain have the same rows and run in order.
    pub(super) fn run_products<const N: usize>(&self, chains: &[[Product<E>; N]]) {
        let rows: usize = chains.iter().map(|chain| chain[0].rows.len()).sum();
        let work = |chain: &[Product<E>; N]| {
            chain.iter().map(|product| product.rows.len() * product.k * product.tokens.len()).sum::<usize>()
        };
        let cost = chains.iter().map(work).sum();
        let tokens = chains.first().map_or(0, |chain| chain[0].tokens.len());
        let grain = row_grain(rows, self.model.threads.threads(), tokens);
        let pieces = |chain: &[Product<E>; N]| chain[0].rows.len().div_ceil(grain);
        let chains = SendPtr(chains);
        self.model.threads.for_each(chains.get().iter().map(pieces).sum(), cost, |task| {
            let mut piece = task;
            for chain in chains.get() {
                if piece < pieces(chain) {
                    return chain.iter().for_each(|product| self.run_rows(product, piece, grain));
                }
                piece -= pieces(chain);
            }
        });
    }

    fn run_rows(&self, product: &Product<E>, piece: usize, grain: usize) {
        let rows = &product.rows;
        let first = rows.start + piece * grain;
        let scratch = at(self.rows(self.layout.scratch), self.model.threads.thread_index());
        let piece = Product { rows: first..(first + grain).min(rows.end), scratch, ..product.clone() };
        // SAFETY: matrices have the sizes of the slab, values those of the layout; pieces have disjoint rows and each
        // thread has its own scratch.
        unsafe { self.model.isa.run(piece) }
    }

    /// Computes the final norm and the logits of the requested rows.
    pub(super) fn head(&self) {
        let weights = self.global_weights();
        let (norm, bias) = (weights.get(Tensor::FinalNorm), weights.find(Tensor::FinalNormBias));
        let last = self.rows(self.layout.last_hidden);
        let mut rows = 0;
        for (first, sequence) in self.each_sequence() {
            let end = first + sequence.tokens.len();
            for token in end - sequence.logit_rows..end {
                self.norm_row((at(self.residual(), token), at(last, rows)), norm, bias);
                self.narrow_row(at(last, rows), self.model.spec.hidden as usize);
                rows += 1;
            }
        }
        if rows > 0 {
            let tied = self.model.spec.tied_embeddings;
            let matrix = if tied { Tensor::Embedding } else { Tensor::Head };
            let output = self.rows(self.layout.logits);
            // No family has a bias here, and a global slab has no layer tensor, so `UpBias` is not found.
            let head = (matrix, Tensor::UpBias, Epilogue::Store);
            self.run_products(&[[self.product(weights, (last, rows), head, output)]]);
        }
    }
}

/// Returns row `index` of a value.
pub(crate) fn at((start, row): Rows, index: usize) -> *mut f32 {
    start.wrapping_add(index * row)
}

/// Returns the rows per task: several tasks per thread, and whole tiles, or whole panels for more than 8 tokens.
fn row_grain(rows: usize, threads: usize, tokens: usize) -> usize {
    const TASKS_PER_THREAD: usize = 4;
    let unit = if tokens > 8 { PANEL_ROWS } else { 8 };
    rows.div_ceil(threads * TASKS_PER_THREAD).next_multiple_of(unit)
}

/// A value whose pointers the whole thread team may read.
pub(crate) struct SendPtr<T>(pub T);

// SAFETY: it carries only pointers to weights and values of a step, which are valid from any thread as for `Step`.
unsafe impl<T> Sync for SendPtr<T> {}

impl<T: Copy> SendPtr<T> {
    pub fn get(&self) -> T {
        self.0
    }
}

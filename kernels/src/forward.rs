//! One step: a forward pass over a mixed batch of prompts and decodes. A step of more tokens than a chunk has goes through
//! a layer chunk by chunk, and all of it through one layer before the next: a layer that has only just arrived is of use to
//! the whole step.
//!
//! The engine owns no memory. Weights are read in place at the offsets of [`sluice_link::slab::slab_layout`], K and V
//! live in a flat arena of layer-blocks, and every intermediate value lies in the activation arena, whose size is a
//! monotone function of the step's shape ([`Model::activation_cost`]).
//!
//! **Batch invariance** (DESIGN 7). The bits of a sequence's logits and KV depend on its tokens and weights alone:
//! never on the other sequences, the chunking, the block ids or the number of threads.

mod batch;
mod check;
mod chunk;
mod error;
pub(crate) mod layer_pass;
mod logits;
mod ranges;
pub(crate) mod step;

pub use batch::{Batch, BlockTable, Sequence};
pub use error::{ForwardError, ModelError, SequenceError};
pub use logits::{LogitRow, LogitsView};
pub use ranges::{RangeParts, Ranges};
pub use sluice_link::vocabulary::{ActivationCost, StepShape};

use std::ops::ControlFlow;

use half::{bf16, f16};
use sluice_link::activation::{self, Layout};
use sluice_link::model::{Dtype, ModelSpec};
use sluice_link::slab::{SlabLayout, slab_layout};

use crate::ops::thread_pool::StepThreads;
use crate::rope;
use crate::simd::Isa;
use step::Step;

/// Tokens in a layer-block.
pub const BLOCK_TOKENS: usize = 16;

/// What the process around a step does between layers.
pub trait LayerHooks: Send {
    /// Called before the first read of `layer`'s weights and KV; returns when both are there. `Break` ends the step with
    /// [`ForwardError::Aborted`].
    fn before_layer(&mut self, layer: usize) -> ControlFlow<()>;

    /// Called after the last read of `layer`'s weights and KV, with its compute time (waiting not counted).
    fn after_layer(&mut self, layer: usize, elapsed_ns: u64);
}

/// Hooks of a model whose layers are all resident.
pub struct NoHooks;

impl LayerHooks for NoHooks {
    fn before_layer(&mut self, _layer: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn after_layer(&mut self, _layer: usize, _elapsed_ns: u64) {}
}

/// A model ready to compute: its shape, offsets and threads. It holds no weights.
pub struct Model {
    spec: ModelSpec,
    slabs: SlabLayout,
    chunk_bytes: u64,
    frequencies: Vec<f32>,
    /// Tokens that go through a layer together at most.
    chunk_tokens: u32,
    threads: StepThreads,
    isa: Isa,
}

impl Model {
    /// Prepares a model. `chunk_bytes` is the size of a device chunk (a layer-block never straddles two), `threads`
    /// the number of compute threads (at least 1).
    pub fn new(spec: ModelSpec, chunk_bytes: u64, threads: usize) -> Result<Self, ModelError> {
        Model::with_isa(spec, chunk_bytes, threads, Isa::best())
    }

    /// As [`Model::new`], on an instruction set of the caller's choice; it must be one of [`Isa::available`].
    pub fn with_isa(spec: ModelSpec, chunk_bytes: u64, threads: usize, isa: Isa) -> Result<Self, ModelError> {
        check::shape(&spec, chunk_bytes)?;
        assert!(Isa::available().contains(&isa), "{isa:?} is not an instruction set of this processor");
        let (slabs, frequencies) = (slab_layout(&spec), rope::frequencies(&spec));
        let (team, chunk_tokens) = (StepThreads::new(threads)?, u32::MAX);
        Ok(Model { slabs, frequencies, chunk_bytes, chunk_tokens, threads: team, isa, spec })
    }

    /// The same model, whose steps go through each layer in chunks of at most `tokens` tokens (at least 1). The bits stay
    /// the same, and a long step needs less memory. Without this call a step is one chunk.
    pub fn in_chunks_of(self, tokens: u32) -> Model {
        assert!(tokens > 0, "a chunk has a token");
        Model { chunk_tokens: tokens, ..self }
    }

    /// The shape.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Activation bytes by step shape. [`Model::run`] needs exactly this much.
    pub fn activation_cost(&self) -> ActivationCost {
        activation::cost(&self.spec, self.threads.threads(), self.chunk_tokens)
    }

    /// Runs one step. Rows of the returned logits are in batch order, positions ascending within a sequence.
    ///
    /// Everything is checked before anything is written: an error other than [`ForwardError::Aborted`] leaves KV and
    /// activations untouched. K and V are written at positions `start..start + tokens.len()` of each sequence only.
    pub fn run<'r, H: LayerHooks>(
        &self,
        ranges: &'r mut Ranges,
        batch: &Batch<'_>,
        hooks: &mut H,
    ) -> Result<LogitsView<'r>, ForwardError> {
        let parts = ranges.parts();
        check::batch(&self.spec, parts, batch)?;
        let shape = batch.shape();
        let layout = Layout::new(&self.spec, self.threads.threads(), self.chunk_tokens, shape);
        debug_assert_eq!(layout.bytes(), self.activation_cost().bytes(shape), "cost and layout agree");
        check::activations(layout.bytes(), parts)?;
        match self.spec.dtype {
            Dtype::F32 => Step::<f32>::new(self, parts, batch, layout).run(hooks)?,
            Dtype::F16 => Step::<f16>::new(self, parts, batch, layout).run(hooks)?,
            Dtype::Bf16 => Step::<bf16>::new(self, parts, batch, layout).run(hooks)?,
        }
        let words = shape.logit_rows as usize * self.spec.vocab as usize;
        let base = parts.activations.cast::<f32>();
        // SAFETY: the layout puts both within the limit, apart from each other, and `Ranges::new` vouches for the
        // arena, which the mutable borrow keeps from being used by another step.
        let (logits, scratch) = unsafe {
            let scratch = base.add(layout.sampling.0).cast::<u32>();
            (
                std::slice::from_raw_parts_mut(base.add(layout.logits.0), words),
                std::slice::from_raw_parts_mut(scratch, words),
            )
        };
        Ok(LogitsView::new(logits, scratch, self.spec.vocab as usize))
    }
}

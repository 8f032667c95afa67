//! One step: a forward pass over a mixed batch of prefills and decodes. A step with more tokens than a chunk passes
//! each layer chunk by chunk. The whole step passes one layer before the next, so a layer that has just been loaded
//! serves the whole step.
//!
//! The engine owns no memory. Weights are read in place at the offsets of [`sluice_link::slab::slab_layout`]. K and V
//! reside in a flat arena of layer blocks. Intermediate values reside in the activation arena, whose size is a monotone
//! function of the step's shape ([`Model::activation_cost`]).
//!
//! **Batch invariance** (DESIGN 7). The bits of a sequence's logits and KV depend on its tokens and the weights alone,
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

/// Tokens of a layer block.
pub const BLOCK_TOKENS: usize = 16;

/// The work of the surrounding process between layers.
pub trait LayerHooks: Send {
    /// Called before the first read of `layer`'s weights and KV; returns when both are resident. `Break` ends the step
    /// with [`ForwardError::Aborted`].
    fn before_layer(&mut self, layer: usize) -> ControlFlow<()>;

    /// Called after the last read of `layer`'s weights and KV, with its compute time in nanoseconds (without waits).
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
    /// Maximum of tokens that pass a layer together.
    chunk_tokens: u32,
    threads: StepThreads,
    isa: Isa,
}

impl Model {
    /// Prepares a model. `chunk_bytes` is the size of a device chunk (a layer block never straddles two chunks),
    /// `threads` the number of compute threads (at least 1).
    pub fn new(spec: ModelSpec, chunk_bytes: u64, threads: usize) -> Result<Self, ModelError> {
        Model::with_isa(spec, chunk_bytes, threads, Isa::best())
    }

    /// Like [`Model::new`], with an instruction set from [`Isa::available`].
    pub fn with_isa(spec: ModelSpec, chunk_bytes: u64, threads: usize, isa: Isa) -> Result<Self, ModelError> {
        check::shape(&spec, chunk_bytes)?;
        assert!(Isa::available().contains(&isa), "{isa:?} is not an instruction set of this processor");
        let (slabs, frequencies) = (slab_layout(&spec), rope::frequencies(&spec));
        let (team, chunk_tokens) = (StepThreads::new(threads)?, u32::MAX);
        Ok(Model { slabs, frequencies, chunk_bytes, chunk_tokens, threads: team, isa, spec })
    }

    /// Returns the same model with steps that pass each layer in chunks of at most `tokens` tokens (at least 1). The
    /// results have the same bits, and a long step needs less memory. Without this call a step is one chunk.
    pub fn in_chunks_of(self, tokens: u32) -> Model {
        assert!(tokens > 0, "a chunk has a token");
        Model { chunk_tokens: tokens, ..self }
    }

    /// Returns the shape of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the activation bytes by step shape. [`Model::run`] needs exactly this amount.
    pub fn activation_cost(&self) -> ActivationCost {
        activation::cost(&self.spec, self.threads.threads(), self.chunk_tokens)
    }

    /// Runs one step. Rows of the returned logits are in batch order, with ascending positions within a sequence.
    ///
    /// Everything is checked before the first write: an error other than [`ForwardError::Aborted`] leaves KV and
    /// activations untouched. The step writes K and V only at positions `start..start + tokens.len()` of each sequence.
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
        // SAFETY: the layout places both slices within the limit and disjoint. The contract of `Ranges::new` covers the
        // arena, and the mutable borrow keeps other steps from using it.
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

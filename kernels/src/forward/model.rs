//! A model ready to compute.

use sluice_link::activation;
use sluice_link::model::ModelSpec;
use sluice_link::slab::{SlabLayout, slab_layout};

use super::{ActivationCost, ModelError, check};
use crate::ops::thread_pool::StepThreads;
use crate::rope;
use crate::simd::Isa;

/// A model ready to compute: its shape, offsets and threads. It holds no weights.
pub struct Model {
    pub(super) spec: ModelSpec,
    pub(super) slabs: SlabLayout,
    pub(super) chunk_bytes: u64,
    pub(super) frequencies: Vec<f32>,
    /// Maximum of tokens that pass a layer together.
    pub(super) chunk_tokens: u32,
    pub(super) threads: StepThreads,
    pub(super) isa: Isa,
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
}

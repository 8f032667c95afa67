//! A model on a GPU: from a batch to the program of its step.

use sluice_link::activation::cuda::CudaSizes;
use sluice_link::model::{Family, ModelSpec};
use sluice_link::slab::{SlabLayout, slab_layout};
use sluice_link::vocabulary::ActivationCost;
use thiserror::Error;

use super::ShapeError;
use super::inputs::{PackedModel, pack};
use super::pass::CudaPass;
use super::plan::LaunchPlan;
use super::program::StepProgram;
use super::step_plan::{DeviceRanges, StepPlan};
use crate::forward::chunk::{Chunk, chunks};
use crate::forward::{Batch, BlockTable, ForwardError, ModelError, Sequence, check};
use crate::{llama, opt, rope};

/// A model that the CUDA kernels cannot compute.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CudaModelError {
    /// As on the CPU.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No kernel serves one of its sizes.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// A model ready to plan steps: its shape and offsets. It holds no weights.
#[derive(Debug)]
pub struct CudaModel {
    spec: ModelSpec,
    slabs: SlabLayout,
    frequencies: Vec<f32>,
    chunk_bytes: u64,
    max_tokens: u32,
    chunk_tokens: u32,
}

impl CudaModel {
    /// Prepares a model. `chunk_bytes` is the size of a device chunk, `max_tokens` the longest sequence, and
    /// `chunk_tokens` the most tokens that pass a layer together.
    ///
    /// # Errors
    /// A size that the engine or a kernel does not serve.
    pub fn new(
        spec: ModelSpec,
        chunk_bytes: u64,
        max_tokens: u32,
        chunk_tokens: u32,
    ) -> Result<CudaModel, CudaModelError> {
        check::shape(&spec, chunk_bytes)?;
        let (slabs, frequencies) = (slab_layout(&spec), frequencies(&spec));
        let model = CudaModel { spec, slabs, frequencies, chunk_bytes, max_tokens, chunk_tokens };
        // A shape that no kernel serves is found here, and not in the first step.
        model.plan_unchecked(&model.nowhere(), &Batch { sequences: &[one_token()] })?;
        Ok(model)
    }

    /// Returns the shape of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns a bound on the activation bytes by step shape.
    pub fn activation_cost(&self) -> ActivationCost {
        self.sizes().cost()
    }

    /// Plans one step. Rows of the logits are in batch order, with ascending positions within a sequence. The step
    /// writes K and V only at positions `start..start + tokens.len()` of each sequence.
    ///
    /// # Errors
    /// A batch that cannot be computed.
    pub fn plan(&self, ranges: &DeviceRanges, batch: &Batch<'_>) -> Result<StepProgram, ForwardError> {
        check::batch(&self.spec, ranges.layers.len(), ranges.layer_blocks, batch)?;
        let needed_bytes = self.sizes().layout(batch.shape()).bytes;
        check::activations(needed_bytes, ranges.activation_limit_bytes)?;
        let planned = self.plan_unchecked(ranges, batch);
        Ok(planned.expect("the kernels serve the sizes of a model, which `new` has checked"))
    }

    fn plan_unchecked(&self, ranges: &DeviceRanges, batch: &Batch<'_>) -> Result<StepProgram, ShapeError> {
        let (spec, shape) = (&self.spec, batch.shape());
        let layout = self.sizes().layout(shape);
        let inputs_at = ranges.activations + layout.inputs;
        let chunks = chunks(spec, batch, self.chunk_tokens as usize);
        let packed = PackedModel {
            layers: usize::from(spec.layers),
            group: spec.heads / spec.kv_heads,
            frequencies: &self.frequencies,
        };
        let (bytes, inputs) = pack(inputs_at, packed, batch, &chunks);
        debug_assert!(bytes.len() as u64 <= self.sizes().input_bytes(shape), "the bound holds the inputs");
        let (tokens, rows) = (shape.tokens, shape.logit_rows);
        let (slabs, chunk_bytes) = (&self.slabs, self.chunk_bytes);
        let step = StepPlan { spec, slabs, chunk_bytes, ranges, layout, inputs, tokens, rows };
        let layers = (0..usize::from(spec.layers)).map(|layer| launches(&step, layer, &chunks));
        Ok(StepProgram {
            inputs: bytes,
            inputs_at,
            prologue: step.prologue()?,
            layers: layers.collect::<Result<_, _>>()?,
            head: step.head()?,
            results: step.results(),
        })
    }

    fn sizes(&self) -> CudaSizes<'_> {
        let CudaModel { spec, max_tokens, chunk_tokens, .. } = self;
        CudaSizes { spec, max_tokens: *max_tokens, chunk_tokens: *chunk_tokens }
    }

    /// Ranges without memory.
    fn nowhere(&self) -> DeviceRanges {
        DeviceRanges {
            global: 0,
            layers: vec![0; usize::from(self.spec.layers)],
            kv: 0,
            layer_blocks: 1,
            activations: 0,
            activation_limit_bytes: 0,
        }
    }
}

fn frequencies(spec: &ModelSpec) -> Vec<f32> {
    if spec.family == Family::Llama { rope::frequencies(spec) } else { Vec::new() }
}

/// A sequence of one token, all of whose layers use block 0.
fn one_token() -> Sequence<'static> {
    let layer_blocks = BlockTable { ids: &[0], layer_stride: 0, kv_block_stride: 0 };
    Sequence { start: 0, tokens: &[0], layer_blocks, logit_rows: 1 }
}

/// Returns the launches of a layer, chunk by chunk.
fn launches(step: &StepPlan<'_>, layer: usize, chunks: &[Chunk]) -> Result<Vec<LaunchPlan>, ShapeError> {
    let mut launches = Vec::new();
    for (chunk, inputs) in chunks.iter().zip(&step.inputs.chunks) {
        let mut pass = CudaPass::new(step, layer, &chunk.rows, *inputs);
        match step.spec.family {
            Family::Llama => llama::layer(&mut pass),
            Family::Opt => opt::layer(&mut pass),
        }
        launches.extend(pass.into_launches()?);
    }
    Ok(launches)
}

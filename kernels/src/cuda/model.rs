//! A model on a GPU: from a batch to the program of its step.

use sluice_link::activation::cuda::CudaSizes;
use sluice_link::model::{Family, ModelSpec};
use sluice_link::slab::{SlabLayout, slab_layout};
use sluice_link::vocabulary::ActivationCost;
use thiserror::Error;

use super::ShapeError;
use super::inputs::{PackedModel, pack};
use super::packed::{PackedStep, StepLayout};
use super::pass::CudaPass;
use super::product::{Operation, Products};
use super::program::StepProgram;
use super::step_plan::{DeviceRanges, StepPlan};
use crate::forward::chunk::chunks;
use crate::forward::{BLOCK_TOKENS, Batch, BlockTable, ForwardError, ModelError, Sequence, check};
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
    products: Products,
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
        let products = Products::default();
        let model = CudaModel { spec, slabs, frequencies, chunk_bytes, max_tokens, chunk_tokens, products };
        // A shape that no kernel serves is found here, and not in the first step.
        let ranges = model.nowhere();
        let packed = model.pack(&ranges, &Batch { sequences: &[one_token()] }, false);
        model.program_unchecked(&ranges, packed)?;
        Ok(model)
    }

    /// Chooses what computes products.
    #[must_use]
    pub fn with_products(self, products: Products) -> CudaModel {
        CudaModel { products, ..self }
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
        self.check(ranges, batch)?;
        Ok(self.program(ranges, self.pack(ranges, batch, false)))
    }

    /// Packs the inputs of a decode step, in which each sequence has one token with logits, for a program that serves
    /// many such steps. There are as many sequences as the next of vLLM's capture sizes (1, 2, 4 and multiples of 8),
    /// if the activations hold them, and sizes that grow with positions are powers of two. The surplus rows repeat
    /// the sequence with the fewest positions: they write its K and V again, with the same bits, and their results
    /// follow those of the batch.
    ///
    /// Returns `None` for another step.
    ///
    /// # Errors
    /// A batch that cannot be computed.
    pub fn pack_decode(
        &self,
        ranges: &DeviceRanges,
        batch: &Batch<'_>,
    ) -> Result<Option<PackedStep>, ForwardError> {
        let is_decode = |sequence: &Sequence<'_>| sequence.tokens.len() == 1 && sequence.logit_rows == 1;
        let Some(shortest) = batch.sequences.iter().min_by_key(|sequence| sequence.start) else {
            return Ok(None);
        };
        if !batch.sequences.iter().all(is_decode) {
            return Ok(None);
        }
        self.check(ranges, batch)?;
        let mut sequences = batch.sequences.to_vec();
        sequences.resize(capture_size(sequences.len()), *shortest);
        let padded = Batch { sequences: &sequences };
        let fits = self.sizes().layout(padded.shape()).bytes <= ranges.activation_limit_bytes;
        Ok(Some(self.pack(ranges, if fits { &padded } else { batch }, true)))
    }

    /// Plans the operations of a packed step.
    ///
    /// # Panics
    /// If the step is not one of this model.
    pub fn program(&self, ranges: &DeviceRanges, packed: PackedStep) -> StepProgram {
        let planned = self.program_unchecked(ranges, packed);
        planned.expect("the kernels serve the sizes of a model, which `new` has checked")
    }

    fn check(&self, ranges: &DeviceRanges, batch: &Batch<'_>) -> Result<(), ForwardError> {
        check::batch(&self.spec, ranges.layers.len(), ranges.layer_blocks, batch)?;
        let needed_bytes = self.sizes().layout(batch.shape()).bytes;
        check::activations(needed_bytes, ranges.activation_limit_bytes)
    }

    fn pack(&self, ranges: &DeviceRanges, batch: &Batch<'_>, rounds_up: bool) -> PackedStep {
        let (spec, shape) = (&self.spec, batch.shape());
        let values = self.sizes().layout(shape);
        let inputs_at = ranges.activations + values.inputs;
        let chunks = chunks(spec, batch, self.chunk_tokens as usize);
        let packed = PackedModel {
            layers: usize::from(spec.layers),
            group: spec.heads / spec.kv_heads,
            frequencies: &self.frequencies,
            rounds_up,
            most_columns: self.max_tokens.div_ceil(BLOCK_TOKENS as u32),
        };
        let (bytes, inputs) = pack(inputs_at, packed, batch, &chunks);
        debug_assert!(bytes.len() as u64 <= self.sizes().input_bytes(shape), "the bound holds the inputs");
        let (tokens, rows) = (shape.tokens, shape.logit_rows);
        PackedStep { inputs: bytes, inputs_at, layout: StepLayout { values, inputs, tokens, rows } }
    }

    fn program_unchecked(
        &self,
        ranges: &DeviceRanges,
        packed: PackedStep,
    ) -> Result<StepProgram, ShapeError> {
        let PackedStep { inputs, inputs_at, layout } = packed;
        let (spec, slabs, chunk_bytes) = (&self.spec, &self.slabs, self.chunk_bytes);
        let StepLayout { values: layout, inputs: places, tokens, rows } = layout;
        let products = self.products;
        let step =
            StepPlan { spec, slabs, chunk_bytes, ranges, layout, inputs: places, products, tokens, rows };
        let layers = (0..usize::from(spec.layers)).map(|layer| operations(&step, layer));
        Ok(StepProgram {
            inputs,
            inputs_at,
            prologue: step.prologue()?,
            layers: layers.collect::<Result<_, _>>()?,
            head: step.head()?,
            stopped: step.inputs.stopped,
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

/// Returns the operations of a layer, chunk by chunk.
fn operations(step: &StepPlan<'_>, layer: usize) -> Result<Vec<Operation>, ShapeError> {
    let mut operations = Vec::new();
    for chunk in &step.inputs.chunks {
        let mut pass = CudaPass::new(step, layer, *chunk);
        match step.spec.family {
            Family::Llama => llama::layer(&mut pass),
            Family::Opt => opt::layer(&mut pass),
        }
        operations.extend(pass.into_operations()?);
    }
    Ok(operations)
}

/// Returns the next of the batch sizes for which vLLM captures graphs by default, up to 256 (`cudagraph_capture_sizes`).
fn capture_size(sequences: usize) -> usize {
    match sequences {
        0..=2 => sequences,
        3..=4 => 4,
        _ => sequences.next_multiple_of(8),
    }
}

//! A model on the device with random weights: the steps of the engine without a sidecar.

use sluice_kernels::cuda::{CudaModel, DeviceRanges, PackedStep, Products, Results, StepProgram};
use sluice_kernels::engine::CudaKernels;
use sluice_kernels::forward::{Batch, BlockTable, Sequence};
use sluice_link::model::ModelSpec;
use sluice_link::slab::slab_layout;
use sluice_link::vocabulary::StepShape;
use sluice_memory::cuda::{Buffer, Error, ExecGraph, GraphBuilder, Stream};

use crate::device_data::{DeviceData, LIMIT};

/// Bytes of a chunk of the KV arena.
const CHUNK: u64 = 2 << 20;
/// Tokens of a block.
const BLOCK_TOKENS: u32 = 16;

/// A step's sequences, all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepWork {
    /// Number of sequences.
    pub sequences: u32,
    /// Tokens of each that are computed before the step.
    pub start: u32,
    /// Tokens of each in the step.
    pub tokens: u32,
}

impl StepWork {
    /// A decode of sequences that have `context` tokens with the new one.
    pub const fn decode(sequences: u32, context: u32) -> StepWork {
        StepWork { sequences, start: context - 1, tokens: 1 }
    }

    /// A prompt.
    pub const fn prefill(tokens: u32) -> StepWork {
        StepWork { sequences: 1, start: 0, tokens }
    }

    /// Whether each sequence computes one token.
    pub const fn is_decode(self) -> bool {
        self.tokens == 1
    }

    /// Returns the layer-blocks that the step reads or writes.
    fn layer_blocks(self, spec: &ModelSpec) -> u32 {
        self.sequences * self.kv_blocks() * u32::from(spec.layers)
    }

    fn kv_blocks(self) -> u32 {
        (self.start + self.tokens).div_ceil(BLOCK_TOKENS)
    }

    fn shape(self) -> StepShape {
        let StepWork { sequences, tokens, .. } = self;
        StepShape { tokens: sequences * tokens, sequences, logit_rows: sequences }
    }
}

/// A model and its memory.
#[derive(Debug)]
pub struct DeviceModel {
    model: CudaModel,
    /// Where everything is.
    pub ranges: DeviceRanges,
    _memory: Vec<Buffer>,
}

impl DeviceModel {
    /// Makes random weights and KV for steps like `steps`. The first `own_layers` layers have memory of their own, the
    /// others share that of the last of them.
    ///
    /// # Panics
    /// If the kernels do not serve the shape.
    pub fn new(
        data: &DeviceData,
        spec: &ModelSpec,
        own_layers: u16,
        steps: &[StepWork],
    ) -> Result<DeviceModel, Error> {
        let most = |of: fn(&StepWork) -> u32| steps.iter().map(of).max().expect("there are steps");
        let tokens = most(|step| step.start + step.tokens);
        let chunk_tokens = most(|step| step.sequences * step.tokens);
        let model = CudaModel::new(spec.clone(), CHUNK, tokens, chunk_tokens);
        let model = model.expect("the kernels serve the measured shapes");
        let slabs = slab_layout(spec);
        let blocks = steps.iter().map(|step| step.layer_blocks(spec)).max().expect("there are steps");
        let chunks = u64::from(blocks).div_ceil(CHUNK / spec.layer_block_bytes());
        let cost = model.activation_cost();
        let bytes = steps.iter().map(|step| cost.bytes(step.shape())).max().expect("there are steps");
        let mut memory =
            vec![data.random(slabs.global.bytes)?, data.random(chunks * CHUNK)?, data.random(bytes)?];
        let [global, kv, activations] = [0, 1, 2].map(|index: usize| memory[index].at(0));
        let mut layers = Vec::new();
        for layer in 0..spec.layers {
            if layer < own_layers {
                memory.push(data.random(slabs.layer.bytes)?);
            }
            layers.push(memory.last().expect("memory is there").at(0));
        }
        let ranges = DeviceRanges {
            global,
            layers,
            kv,
            layer_blocks: blocks,
            activations,
            activation_limit_bytes: bytes,
        };
        Ok(DeviceModel { model, ranges, _memory: memory })
    }

    /// Chooses what computes products: at first our own kernel.
    #[must_use]
    pub fn with_products(self, products: Products) -> DeviceModel {
        DeviceModel { model: self.model.with_products(products), ..self }
    }

    /// Returns about the bytes of device memory that [`DeviceModel::new`] takes for a step, without activations.
    pub fn bytes(spec: &ModelSpec, step: StepWork) -> u64 {
        let slabs = slab_layout(spec);
        let kv = u64::from(step.layer_blocks(spec)) * spec.layer_block_bytes();
        slabs.global.bytes + u64::from(spec.layers) * slabs.layer.bytes + kv
    }

    /// Plans a step over `ranges`.
    ///
    /// # Panics
    /// If the model was not made for such a step.
    pub fn plan(&self, ranges: &DeviceRanges, step: StepWork) -> StepProgram {
        let planned = self.with_batch(step, |batch| self.model.plan(ranges, batch));
        planned.expect("the model has memory for the measured steps")
    }

    /// Packs the inputs of a decode.
    ///
    /// # Panics
    /// If the step is no decode, or the model was not made for it.
    pub fn pack(&self, step: StepWork) -> PackedStep {
        let packed = self.with_batch(step, |batch| self.model.pack_decode(&self.ranges, batch));
        packed.expect("the model has memory for the measured steps").expect("a decode can be packed")
    }

    /// Captures a packed decode whose layers are all resident, as the engine does, but without its clocks. Products of
    /// cuBLASLt are prepared before.
    pub fn capture(
        &self,
        stream: &Stream,
        kernels: &CudaKernels,
        packed: PackedStep,
    ) -> Result<CapturedDecode, Error> {
        let program = self.model.program(&self.ranges, packed);
        kernels.prepare(stream, &program)?;
        let captured = GraphBuilder::capture(stream, |stream| launch(stream, kernels, &program))?;
        Ok(CapturedDecode { graph: captured.instantiate()?, results: program.results })
    }

    fn with_batch<T>(&self, step: StepWork, work: impl FnOnce(&Batch<'_>) -> T) -> T {
        let (kv_blocks, layers) = (step.kv_blocks(), u32::from(self.model.spec().layers));
        let ids: Vec<u32> = (0..step.layer_blocks(self.model.spec())).collect();
        let tokens = vec![1_u32; step.tokens as usize];
        let of_each = ids.chunks((kv_blocks * layers) as usize);
        let sequences: Vec<Sequence<'_>> = of_each
            .map(|ids| Sequence {
                start: step.start,
                tokens: &tokens,
                layer_blocks: BlockTable::by_layer(ids, kv_blocks as usize),
                logit_rows: 1,
            })
            .collect();
        work(&Batch { sequences: &sequences })
    }
}

/// A decode as a graph.
#[derive(Debug)]
pub struct CapturedDecode {
    /// The graph.
    pub graph: ExecGraph,
    /// Where its results are.
    pub results: Results,
}

/// Queues the operations of a step.
pub fn launch(stream: &Stream, kernels: &CudaKernels, program: &StepProgram) -> Result<(), Error> {
    program.operations().try_for_each(|operation| kernels.run(stream, operation))
}

/// Queues the copy of the inputs.
pub fn upload_inputs(stream: &Stream, program: &StepProgram) -> Result<(), Error> {
    // SAFETY: the callers keep the program until the stream has finished, and a program is not written.
    unsafe { stream.upload_bytes(program.inputs_at, &program.inputs) }
}

/// Waits for a step and copies its tokens to the host, as the engine does.
pub fn finish(stream: &Stream, results: &Results) -> Result<Vec<u32>, Error> {
    let mut tokens = vec![0_u32; results.rows as usize];
    // SAFETY: the numbers are not accessed before the stream has finished, on the next line.
    unsafe { stream.download_bytes(bytemuck::cast_slice_mut(&mut tokens), results.tokens) }?;
    stream.finish_within(LIMIT)?;
    Ok(tokens)
}

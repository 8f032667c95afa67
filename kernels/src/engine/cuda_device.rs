//! A GPU as a device: chunks are physical allocations of the sidecar, and the kernels are those of `kernels/cuda`.
//!
//! A decode step is one CUDA graph, captured once for its shape and the layers that move. Other steps, and all steps
//! where graphs are off, are launched kernel by kernel. Products are those of our own kernel, or of cuBLASLt.

mod device_step;
mod graph_cache;
mod graph_run;
mod input_buffer;
mod kernels;
mod products;
mod step_page;
mod stream_run;

use std::os::fd::{AsFd, OwnedFd};

use sluice_link::message::EngineSetup;
use sluice_link::vocabulary::{ActivationCost, ChunkId, LayerId, MapOp};
use sluice_memory::CudaMapping;
use sluice_memory::cuda::{Context, Device, Driver, Error, Event, GraphBuilder, Stream};
use sluice_memory::mapping::{MappingError, Range};

use super::device::{ResultRow, RunError, StepDevice};
use super::layer_waits::LayerWaits;
use super::memory::EngineMemory;
use crate::cuda::{CudaModel, DeviceRanges, PackedStep, Products, Results};
use crate::forward::{Batch, ForwardError, LogitRow};
use device_step::DeviceStep;
use graph_cache::{CapturedStep, GraphCache, GraphKey};
use graph_run::GraphRun;
use input_buffer::InputBuffer;
pub use kernels::CudaKernels;
use step_page::{STEP_LIMIT, StepPage};
use stream_run::StreamRun;

/// What an engine chooses of a GPU.
#[derive(Debug)]
pub(super) struct CudaOptions {
    /// The GPU or MIG device.
    pub(super) uuid: [u8; 16],
    /// Whether decode steps are CUDA graphs.
    pub(super) graphs: bool,
    /// What computes products, if it is there.
    pub(super) products: Products,
    /// The file of the control page.
    pub(super) control: OwnedFd,
}

/// A model on a GPU.
pub(super) struct CudaDevice {
    model: CudaModel,
    memory: EngineMemory<CudaMapping>,
    ranges: DeviceRanges,
    kernels: CudaKernels,
    stream: Stream,
    /// `None` if every step is launched kernel by kernel.
    graphs: Option<GraphCache>,
    page: StepPage,
    inputs: InputBuffer,
    /// Whether the context is one of an MPS server's. Next to a process that computes, a kernel that waits there finds
    /// a word up to 2 ms late, as late as a stream's wait.
    is_in_mps: bool,
    /// Events before and behind each layer, reused by later steps.
    layers: Vec<[Event; 2]>,
    logits: Vec<f32>,
    scratch: Vec<u32>,
}

impl CudaDevice {
    /// Opens the GPU, loads all kernels and reserves the ranges of `setup` without backing them. Kernels are loaded
    /// before the first wait: a driver may wait for all streams when it loads one.
    pub(super) fn new(
        setup: &EngineSetup,
        model: CudaModel,
        options: CudaOptions,
    ) -> Result<CudaDevice, MappingError> {
        let context = Context::new(Device::with_uuid(Driver::open()?, options.uuid)?)?;
        let (kernels, products) = kernels(&context, options.products)?;
        let model = model.with_products(products);
        let mapping = CudaMapping::reserve(&context, setup.chunk_bytes, &setup.range_sizes())?;
        let memory = EngineMemory::new(setup, mapping);
        let ranges = ranges(setup, &memory);
        let events = || Ok([Event::new(&context)?, Event::new(&context)?]);
        Ok(CudaDevice {
            model,
            memory,
            ranges,
            kernels,
            stream: Stream::new(&context)?,
            graphs: graphs(&context, options.graphs)?,
            page: StepPage::new(&context, setup.spec.layers, options.control)?,
            inputs: InputBuffer::new(&context)?,
            is_in_mps: context.device().is_in_mps(),
            layers: (0..setup.spec.layers).map(|_| events()).collect::<Result<_, Error>>()?,
            logits: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Whether the next step may be a graph.
    fn uses_graphs(&self, waits: &LayerWaits<'_>) -> bool {
        self.graphs.is_some()
            && !waits.delays_layers()
            && !(self.is_in_mps && waits.expected().iter().any(|expected| expected.moves()))
    }

    /// Runs a step, and returns where its results are.
    fn run_step(&mut self, batch: &Batch<'_>, waits: &mut LayerWaits<'_>) -> Result<Results, RunError> {
        let packed = match self.uses_graphs(waits) {
            true => self.model.pack_decode(&self.ranges, batch)?,
            false => None,
        };
        if let Some(packed) = packed
            && let Some(results) = self.run_graph(packed, waits)?
        {
            return Ok(results);
        }
        let program = self.model.plan(&self.ranges, batch)?;
        self.page.arm(waits.expected());
        self.inputs.upload(&self.stream, program.inputs_at, &program.inputs)?;
        let CudaDevice { stream, kernels, page, layers: events, .. } = self;
        StreamRun { step: DeviceStep { stream, kernels, page }, events }.run(&program, waits)?;
        Ok(program.results)
    }

    /// Runs a decode step as a graph. Returns `None`, with nothing of the step queued, if the driver cannot make the graph:
    /// then no later step is one.
    fn run_graph(
        &mut self,
        packed: PackedStep,
        waits: &mut LayerWaits<'_>,
    ) -> Result<Option<Results>, RunError> {
        if waits.end_if_expired() {
            return Err(ForwardError::Aborted { layer: 0 }.into());
        }
        let CudaDevice { model, ranges, kernels, stream, graphs, page, inputs, .. } = self;
        let step = DeviceStep { stream, kernels, page };
        let cache = graphs.as_mut().expect("graphs are in use");
        let moving: Vec<bool> = waits.expected().iter().map(|expected| expected.moves()).collect();
        let key = GraphKey { layout: packed.layout.clone(), moving: moving.clone() };
        let captured = cache.get(key, || {
            let program = model.program(ranges, packed.clone());
            kernels.prepare(step.stream, &program)?;
            graph_run::capture(step, &program, &moving)
        });
        let CapturedStep { graph, results } = match captured {
            Ok(captured) => captured,
            Err(error) => {
                tracing::warn!("from now on steps run without CUDA graphs: {error}");
                *graphs = None;
                return Ok(None);
            }
        };
        graph_run::arm(page, waits);
        waits.begin_layer();
        inputs.upload(step.stream, packed.inputs_at, &packed.inputs)?;
        GraphRun { step, moving: &moving }.run(graph, waits)?;
        Ok(Some(*results))
    }
}

/// Loads the kernels, and cuBLASLt if it is wanted. Returns what computes products: our own kernel if no file of
/// cuBLASLt fits the driver.
fn kernels(context: &Context, wanted: Products) -> Result<(CudaKernels, Products), Error> {
    let mut kernels = CudaKernels::load(context)?;
    if wanted == Products::Deterministic {
        return Ok((kernels, wanted));
    }
    match kernels.load_cublaslt(context) {
        Ok(()) => Ok((kernels, Products::CublasLt)),
        Err(error @ (Error::NoCublasLt { .. } | Error::OldCublasLt { .. })) => {
            tracing::warn!("products are computed by Sluice's own kernel: {error}");
            Ok((kernels, Products::Deterministic))
        }
        Err(error) => Err(error),
    }
}

/// Returns an empty cache of graphs, unless they are off or the driver cannot run them: the kernels of a graph wait, and a
/// driver that loads kernels lazily may wait for them.
fn graphs(context: &Context, wanted: bool) -> Result<Option<GraphCache>, Error> {
    if !wanted {
        return Ok(None);
    }
    let reason = match GraphBuilder::can_capture(context) {
        Err(error) => error.to_string(),
        Ok(()) if !context.loads_eagerly()? => "the driver loads kernels when they are used first".to_owned(),
        Ok(()) => return Ok(Some(GraphCache::default())),
    };
    tracing::warn!("steps run without CUDA graphs: {reason}");
    Ok(None)
}

/// Returns the addresses that a model computes over.
fn ranges(setup: &EngineSetup, memory: &EngineMemory<CudaMapping>) -> DeviceRanges {
    let address = |range| memory.mapping().address(range);
    DeviceRanges {
        global: address(Range::Global),
        layers: (0..setup.spec.layers).map(|layer| address(Range::Layer(LayerId(layer)))).collect(),
        kv: address(Range::Kv),
        layer_blocks: memory.layer_blocks(),
        activations: address(Range::Activation),
        activation_limit_bytes: 0,
    }
}

impl StepDevice for CudaDevice {
    type Mapping = CudaMapping;

    fn activation_cost(&self) -> ActivationCost {
        self.model.activation_cost()
    }

    fn memory(&self) -> &EngineMemory<CudaMapping> {
        &self.memory
    }

    fn import(&mut self, chunks: Vec<(ChunkId, OwnedFd)>) -> Result<(), MappingError> {
        let import = |mapping: &mut CudaMapping| {
            chunks.iter().try_for_each(|(chunk, descriptor)| mapping.import(*chunk, descriptor.as_fd()))
        };
        self.memory.change(import)
    }

    fn release(&mut self, chunks: &[ChunkId]) -> Result<(), MappingError> {
        self.memory.change(|mapping| chunks.iter().try_for_each(|chunk| mapping.release(*chunk)))
    }

    fn apply(&mut self, ops: &[MapOp]) -> Result<(), MappingError> {
        self.memory.change(|mapping| mapping.apply_all(ops))
    }

    fn poison_activations(&mut self, bytes: u64) -> Result<(), Error> {
        self.stream.fill(self.ranges.activations, u32::MAX, bytes)?;
        self.stream.finish()
    }

    fn run(
        &mut self,
        activation_bytes: u64,
        batch: &Batch<'_>,
        waits: &mut LayerWaits<'_>,
        takes_largest: &[bool],
    ) -> Result<Vec<ResultRow<'_>>, RunError> {
        self.ranges.activation_limit_bytes = activation_bytes;
        let ran = self.run_step(batch, waits);
        // The queued work reads the inputs, and writes KV, until it ends. An error of the GPU comes before others.
        self.stream.finish_within(STEP_LIMIT)?;
        self.results(ran?, takes_largest)
    }
}

impl CudaDevice {
    /// Copies the results to the host: the token of a row that takes the largest logit, else its logits.
    fn results(&mut self, results: Results, takes_largest: &[bool]) -> Result<Vec<ResultRow<'_>>, RunError> {
        let vocab = self.model.spec().vocab as usize;
        let sampled = takes_largest.iter().filter(|largest| !**largest).count();
        self.logits.resize(sampled * vocab, 0.0);
        self.scratch.resize(sampled * vocab, 0);
        let mut tokens = vec![0_u32; takes_largest.len()];
        let rows = takes_largest.iter().enumerate().filter(|(_, largest)| !**largest);
        for ((row, _), logits) in rows.zip(self.logits.chunks_exact_mut(vocab)) {
            let from = results.logits + (row * vocab * 4) as u64;
            // SAFETY: the buffer is not accessed before the stream has finished, below.
            unsafe { self.stream.download_bytes(bytemuck::cast_slice_mut(logits), from) }?;
        }
        // SAFETY: as above.
        unsafe { self.stream.download_bytes(bytemuck::cast_slice_mut(&mut tokens), results.tokens) }?;
        self.stream.finish_within(STEP_LIMIT)?;
        let logits = self.logits.chunks_exact_mut(vocab).zip(self.scratch.chunks_exact_mut(vocab));
        let mut logits = logits.map(|(logits, scratch)| ResultRow::Logits(LogitRow { logits, scratch }));
        let row = |(largest, token): (&bool, u32)| match largest {
            true => ResultRow::Largest((token != u32::MAX).then_some(token)),
            false => logits.next().expect("each sampled row has logits"),
        };
        Ok(takes_largest.iter().zip(tokens).map(row).collect())
    }
}

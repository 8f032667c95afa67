//! A GPU as a device: chunks are physical allocations of the sidecar, and the kernels are those of `kernels/cuda`.
//!
//! The thread waits for a layer's `ready` and queues its kernels, while the GPU computes earlier layers. It publishes
//! `done` of a layer once the GPU has reached the event behind it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sluice_link::message::EngineSetup;
use sluice_link::vocabulary::{ActivationCost, ChunkId, LayerId, MapOp};
use sluice_memory::CudaMapping;
use sluice_memory::cuda::stream::poll_until;
use sluice_memory::cuda::{Context, Device, Driver, Error, Event, Stream};
use sluice_memory::mapping::{MappingError, Range};

use super::cuda_kernels::CudaKernels;
use super::device::{ResultRow, RunError, StepDevice};
use super::layer_waits::LayerWaits;
use super::memory::{EngineMemory, range_sizes};
use crate::cuda::{CudaModel, DeviceRanges, StepProgram};
use crate::forward::{Batch, ForwardError, LayerHooks, LogitRow};

/// A step takes longer than this only if the GPU has stopped.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// A model on a GPU.
pub(super) struct CudaDevice {
    model: CudaModel,
    memory: EngineMemory<CudaMapping>,
    ranges: DeviceRanges,
    kernels: CudaKernels,
    stream: Stream,
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
        uuid: [u8; 16],
    ) -> Result<CudaDevice, MappingError> {
        let context = Context::new(Device::with_uuid(Driver::open()?, uuid)?)?;
        let kernels = CudaKernels::load(&context)?;
        let mapping = CudaMapping::reserve(&context, setup.chunk_bytes, &range_sizes(setup))?;
        let memory = EngineMemory::new(setup, mapping);
        let ranges = ranges(setup, &memory);
        let events = || Ok([Event::new(&context)?, Event::new(&context)?]);
        let layers = (0..setup.spec.layers).map(|_| events()).collect::<Result<_, Error>>()?;
        let stream = Stream::new(&context)?;
        let (logits, scratch) = (Vec::new(), Vec::new());
        Ok(CudaDevice { model, memory, ranges, kernels, stream, layers, logits, scratch })
    }

    /// Queues all of a step. The caller waits for the stream before it drops the program.
    fn run_program(&self, program: &StepProgram, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        // SAFETY: the caller keeps the inputs until the stream has finished.
        unsafe { self.stream.upload_bytes(program.inputs_at, &program.inputs) }?;
        let launch = |launch| self.kernels.launch(&self.stream, launch);
        program.prologue.iter().try_for_each(launch)?;
        self.run_layers(program, waits)?;
        Ok(program.head.iter().try_for_each(launch)?)
    }

    /// Queues the layers, each once its weights and KV are there, then waits for the last one.
    fn run_layers(&self, program: &StepProgram, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        let mut queued = QueuedLayers { events: &self.layers, queue: VecDeque::new(), error: None };
        for (layer, launches) in program.layers.iter().enumerate() {
            let ready = waits.before_layer_behind(layer, Some(&mut || queued.next_finished()));
            queued.take_error()?;
            if ready.is_break() {
                return Err(ForwardError::Aborted { layer }.into());
            }
            let [begin, end] = &self.layers[layer];
            begin.record(&self.stream)?;
            launches.iter().try_for_each(|launch| self.kernels.launch(&self.stream, launch))?;
            end.record(&self.stream)?;
            queued.queue.push_back(layer);
        }
        poll_until(STEP_LIMIT, "the layers of a step", || {
            while let Some((layer, elapsed_ns)) = queued.next_finished() {
                waits.after_layer(layer, elapsed_ns);
            }
            queued.take_error()?;
            Ok::<_, Error>(queued.queue.is_empty())
        })?;
        for layer in 1..program.layers.len() {
            // A time of an event is a call of the driver: layers without a wait need none.
            if waits.has_waited(layer) {
                let idle_ns = self.layers[layer][0].since_ns(&self.layers[layer - 1][1])?;
                waits.limit_stall(layer, idle_ns.max(0.0) as u64);
            }
        }
        Ok(())
    }
}

/// Layers whose kernels are queued, first the one that ends first.
struct QueuedLayers<'a> {
    events: &'a [[Event; 2]],
    queue: VecDeque<usize>,
    /// The first error of the driver.
    error: Option<Error>,
}

impl QueuedLayers<'_> {
    /// Removes the first layer if the GPU has finished it, and returns it with its time.
    fn next_finished(&mut self) -> Option<(usize, u64)> {
        let layer = *self.queue.front()?;
        let [begin, end] = &self.events[layer];
        let finished = end
            .is_reached()
            .and_then(|reached| if reached { end.since_ns(begin).map(Some) } else { Ok(None) });
        match finished {
            Ok(elapsed_ns) => {
                let elapsed_ns = elapsed_ns?;
                self.queue.pop_front();
                Some((layer, elapsed_ns.max(0.0) as u64))
            }
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    fn take_error(&mut self) -> Result<(), Error> {
        self.error.take().map_or(Ok(()), Err)
    }
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
        let program = self.model.plan(&self.ranges, batch)?;
        let ran = self.run_program(&program, waits);
        // The queued work reads the inputs, and writes KV, until it ends. An error of the GPU comes before others.
        self.stream.finish_within(STEP_LIMIT)?;
        ran?;
        self.results(&program, takes_largest)
    }
}

impl CudaDevice {
    /// Copies the results to the host: the token of a row that takes the largest logit, else its logits.
    fn results(
        &mut self,
        program: &StepProgram,
        takes_largest: &[bool],
    ) -> Result<Vec<ResultRow<'_>>, RunError> {
        let vocab = self.model.spec().vocab as usize;
        let sampled = takes_largest.iter().filter(|largest| !**largest).count();
        self.logits.resize(sampled * vocab, 0.0);
        self.scratch.resize(sampled * vocab, 0);
        let mut tokens = vec![0_u32; takes_largest.len()];
        let rows = takes_largest.iter().enumerate().filter(|(_, largest)| !**largest);
        for ((row, _), logits) in rows.zip(self.logits.chunks_exact_mut(vocab)) {
            let from = program.results.logits + (row * vocab * 4) as u64;
            // SAFETY: the buffer is not accessed before the stream has finished, below.
            unsafe { self.stream.download_bytes(bytemuck::cast_slice_mut(logits), from) }?;
        }
        // SAFETY: as above.
        unsafe { self.stream.download_bytes(bytemuck::cast_slice_mut(&mut tokens), program.results.tokens) }?;
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

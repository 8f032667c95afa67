//! The CPU as a device: chunks are ranges of one memfd.

use std::os::fd::{AsFd, OwnedFd};

use sluice_link::message::EngineSetup;
use sluice_link::vocabulary::{ActivationCost, ChunkId, LayerId, MapOp};
use sluice_memory::cuda;
use sluice_memory::mapping::{Mapping, MappingError, Range};

use super::device::{ResultRow, RunError, StepDevice};
use super::layer_waits::LayerWaits;
use super::memory::EngineMemory;
use crate::forward::{Batch, Model, RangeParts, Ranges};

/// A model on the CPU, over the sidecar's pool.
pub(super) struct HostDevice {
    model: Model,
    memory: EngineMemory<Mapping>,
    ranges: Ranges,
    pool: OwnedFd,
}

impl HostDevice {
    /// Reserves the ranges of `setup` without backing them.
    pub(super) fn new(setup: &EngineSetup, model: Model, pool: OwnedFd) -> Result<HostDevice, MappingError> {
        let mapping = Mapping::reserve(setup.chunk_bytes, setup.range_sizes())?;
        let memory = EngineMemory::new(setup, mapping);
        let ranges = ranges(setup, &memory);
        Ok(HostDevice { model, memory, ranges, pool })
    }
}

/// Returns the addresses that a model computes over.
fn ranges(setup: &EngineSetup, memory: &EngineMemory<Mapping>) -> Ranges {
    let address = |range| memory.mapping().address(range);
    let layers = (0..setup.spec.layers).map(|layer| address(Range::Layer(LayerId(layer))));
    let parts = RangeParts {
        global: address(Range::Global),
        layers: layers.map(<*mut u8>::cast_const).collect(),
        kv: address(Range::Kv),
        layer_blocks: memory.layer_blocks(),
        activations: address(Range::Activation),
        activation_limit_bytes: 0,
    };
    // SAFETY: the addresses are page-aligned and constant while the mapping exists, and the device keeps it as long as
    // the ranges. Before each run the worker checks that weights, the batch's blocks and the activations up to their
    // limit are backed, and backing never changes during a run. The sidecar guarantees that no other process writes
    // them: it fills a slot only between `done` and `ready`.
    unsafe { Ranges::new(parts) }
}

impl StepDevice for HostDevice {
    type Mapping = Mapping;

    fn activation_cost(&self) -> ActivationCost {
        self.model.activation_cost()
    }

    fn memory(&self) -> &EngineMemory<Mapping> {
        &self.memory
    }

    fn import(&mut self, chunks: Vec<(ChunkId, OwnedFd)>) -> Result<(), MappingError> {
        chunks.first().map_or(Ok(()), |(chunk, _)| Err(MappingError::Imported { chunk: *chunk }))
    }

    fn release(&mut self, chunks: &[ChunkId]) -> Result<(), MappingError> {
        chunks.first().map_or(Ok(()), |chunk| Err(MappingError::NotImported { chunk: *chunk }))
    }

    fn apply(&mut self, ops: &[MapOp]) -> Result<(), MappingError> {
        let pool = self.pool.as_fd();
        self.memory.change(|mapping| mapping.apply_all(pool, ops))
    }

    fn poison_activations(&mut self, bytes: u64) -> Result<(), cuda::Error> {
        let start = self.memory.mapping().address(Range::Activation);
        // SAFETY: the caller has checked that the bytes are backed, and this process does not use them between steps.
        unsafe { start.write_bytes(0xff, bytes as usize) };
        Ok(())
    }

    fn run(
        &mut self,
        activation_bytes: u64,
        batch: &Batch<'_>,
        waits: &mut LayerWaits<'_>,
        _takes_largest: &[bool],
    ) -> Result<Vec<ResultRow<'_>>, RunError> {
        // SAFETY: the caller has checked that this many bytes are backed, and backing does not change during a step.
        unsafe { self.ranges.set_activation_limit(activation_bytes) };
        let logits = self.model.run(&mut self.ranges, batch, waits)?;
        Ok(logits.into_rows().map(ResultRow::Logits).collect())
    }
}

//! The ranges of a worker and the chunks behind them, on the host or on a GPU.

use std::os::fd::{AsFd, OwnedFd};

use sluice_link::message::{Device, WorkerSetup};
use sluice_link::vocabulary::{Address, ChunkId, KvChunkId, LayerId, MapOp};
use sluice_memory::cuda::{self, Context, Driver, Stream};
use sluice_memory::{CudaMapping, Mapping, MappingError, Range};

/// Reserved ranges and their chunks.
#[derive(Debug)]
pub(crate) enum WorkerMemory {
    Host { mapping: Mapping, pool: OwnedFd },
    Cuda { mapping: CudaMapping, stream: Stream },
}

impl WorkerMemory {
    /// Reserves all ranges without backing.
    ///
    /// # Panics
    /// The setup is of the host and there is no pool, which the link has refused.
    pub(crate) fn reserve(setup: &WorkerSetup, pool: Option<OwnedFd>) -> Result<WorkerMemory, MappingError> {
        let sizes = setup.range_sizes();
        match setup.device {
            Device::Host => {
                let mapping = Mapping::reserve(setup.chunk_bytes, sizes)?;
                Ok(WorkerMemory::Host { mapping, pool: pool.expect("host memory has a pool") })
            }
            Device::Cuda { uuid } => {
                // The context that PyTorch uses too; another one would take its own memory of the device.
                let context = Context::primary(cuda::Device::with_uuid(Driver::open()?, uuid)?)?;
                let mapping = CudaMapping::reserve(&context, setup.chunk_bytes, &sizes)?;
                Ok(WorkerMemory::Cuda { mapping, stream: Stream::new(&context)? })
            }
        }
    }

    /// Returns the first address of a range, constant until drop.
    ///
    /// # Panics
    /// There is no such layer.
    pub(crate) fn address(&self, range: Range) -> u64 {
        match self {
            WorkerMemory::Host { mapping, .. } => mapping.address(range) as usize as u64,
            WorkerMemory::Cuda { mapping, .. } => mapping.address(range),
        }
    }

    /// Applies all of `ops`, in order, or none of them. Nothing in this process uses the addresses.
    pub(crate) fn apply(&mut self, ops: &[MapOp]) -> Result<(), MappingError> {
        match self {
            WorkerMemory::Host { mapping, pool } => mapping.apply_all(pool.as_fd(), ops),
            WorkerMemory::Cuda { mapping, stream } => {
                stream.context().enter()?;
                mapping.apply_all(ops)
            }
        }
    }

    /// Fills positions of the KV range with zeros. Nothing in this process uses them.
    ///
    /// # Errors
    /// A position is not backed, and nothing was filled; or the GPU failed.
    pub(crate) fn zero(&mut self, positions: &[KvChunkId]) -> Result<(), ZeroError> {
        for position in positions {
            if self.chunk_at(Address::Kv(*position)).is_none() {
                return Err(ZeroError::NotBacked(*position));
            }
        }
        positions.iter().try_for_each(|position| self.fill(*position)).map_err(ZeroError::Device)?;
        match self {
            WorkerMemory::Host { .. } => Ok(()),
            WorkerMemory::Cuda { stream, .. } => stream.finish().map_err(ZeroError::Device),
        }
    }

    fn fill(&mut self, position: KvChunkId) -> Result<(), cuda::Error> {
        let address = Address::Kv(position);
        match self {
            WorkerMemory::Host { mapping, .. } => {
                let start = mapping.position_ptr(address).expect("a backed position lies in its range");
                // SAFETY: the chunk behind the position is mapped, as `zero` has checked, and stays mapped while
                // `self` is borrowed. Nothing in this process uses it, as the order says.
                unsafe { start.write_bytes(0, mapping.chunk_bytes() as usize) };
                Ok(())
            }
            WorkerMemory::Cuda { mapping, stream } => {
                stream.context().enter()?;
                let start = mapping.position(address).expect("a backed position lies in its range");
                stream.fill(start, 0, mapping.chunk_bytes())
            }
        }
    }

    /// Imports chunks of a GPU.
    pub(crate) fn import(&mut self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), MappingError> {
        match self {
            WorkerMemory::Host { .. } => {
                chunks.first().map_or(Ok(()), |(chunk, _)| Err(MappingError::Imported { chunk: *chunk }))
            }
            WorkerMemory::Cuda { mapping, stream } => {
                stream.context().enter()?;
                chunks.iter().try_for_each(|(chunk, fd)| mapping.import(*chunk, fd.as_fd()))
            }
        }
    }

    /// Releases the imports of chunks that are mapped nowhere.
    pub(crate) fn release(&mut self, chunks: &[ChunkId]) -> Result<(), MappingError> {
        match self {
            WorkerMemory::Host { .. } => {
                chunks.first().map_or(Ok(()), |chunk| Err(MappingError::NotImported { chunk: *chunk }))
            }
            WorkerMemory::Cuda { mapping, stream } => {
                stream.context().enter()?;
                chunks.iter().try_for_each(|chunk| mapping.release(*chunk))
            }
        }
    }

    fn chunk_at(&self, address: Address) -> Option<ChunkId> {
        match self {
            WorkerMemory::Host { mapping, .. } => mapping.chunk_at(address),
            WorkerMemory::Cuda { mapping, .. } => mapping.chunk_at(address),
        }
    }
}

/// Why positions were not filled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ZeroError {
    /// Nothing was filled.
    #[error("position {} of the KV range is not backed", .0.0)]
    NotBacked(KvChunkId),
    /// Its state is lost.
    #[error("the GPU failed: {0}")]
    Device(cuda::Error),
}

/// Returns the range of a layer, or of KV.
pub(crate) fn range_of(layer: Option<u16>) -> Range {
    layer.map_or(Range::Kv, |layer| Range::Layer(LayerId(layer)))
}

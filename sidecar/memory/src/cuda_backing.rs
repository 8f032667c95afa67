//! Device memory of a CUDA GPU. A chunk is one handle of the driver, and the sidecar maps it at an address of its own
//! to copy into it. Engines import it and map it at as many addresses as they need.

mod chunks;
mod lane;
mod words;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sluice_policy::ids::ChunkId;

use crate::backing::{Backing, BackingError, CopyLane, Region};
use crate::cuda::Context;
use chunks::CudaChunks;
use lane::{COPY_BYTES, CudaLane};
pub use words::ControlFile;
use words::ControlWords;

/// Chunks of a GPU.
#[derive(Debug)]
pub struct CudaBacking {
    chunks: Arc<CudaChunks>,
    words: Option<Arc<ControlWords>>,
    context: Context,
}

impl CudaBacking {
    /// Reserves addresses for `capacity_chunks` chunks of `chunk_bytes`, a multiple of the driver's granularity.
    /// Streams wait for words of `control` and write them, unless the device or its driver cannot: then only the CPU
    /// does.
    pub fn new(
        context: &Context,
        chunk_bytes: u64,
        capacity_chunks: u32,
        control: Option<ControlFile>,
    ) -> Result<CudaBacking, BackingError> {
        context.enter()?;
        let chunks = Arc::new(CudaChunks::reserve(context, chunk_bytes, capacity_chunks)?);
        let words = match control {
            Some(control) => ControlWords::register(context, control)?.map(Arc::new),
            None => None,
        };
        Ok(CudaBacking { chunks, words, context: context.clone() })
    }

    /// Returns whether streams wait for words of the control page and write them.
    pub fn streams_signal(&self) -> bool {
        self.words.is_some()
    }
}

impl Backing for CudaBacking {
    fn create(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        self.context.enter()?;
        self.chunks.create(chunks)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.context.enter()?;
        self.chunks.release(chunk);
        Ok(())
    }

    fn map(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        self.context.enter()?;
        self.chunks.map(chunks)
    }

    fn unmap(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.context.enter()?;
        self.chunks.unmap(chunk)
    }

    fn export(&self, chunk: ChunkId) -> Result<OwnedFd, BackingError> {
        self.context.enter()?;
        self.chunks.export(chunk)
    }

    fn lane(&self) -> Box<dyn CopyLane> {
        Box::new(CudaLane::new(self.context.clone(), self.chunks.clone(), self.words.clone()))
    }

    fn host_region(&self, bytes: u64) -> Result<Region, BackingError> {
        Ok(Region::registered(&self.context, bytes)?)
    }

    fn piece_bytes(&self) -> Option<usize> {
        Some(COPY_BYTES)
    }

    fn signals(&self) -> bool {
        true
    }
}

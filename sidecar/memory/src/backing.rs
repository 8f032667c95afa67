//! What host memory and CUDA do differently. [`Backing`] owns the memory of the chunks, and a [`CopyLane`] copies.
//!
//! Everything else is one code for both: which operation may run, in which order, what a chunk may be used for, and
//! accounting. So both bodies make the same calls for the same orders, in the same sequence.

use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use sluice_policy::ids::{ChunkId, Generation, LayerId};

use crate::cuda;
use crate::mapping::MappingError;
pub use crate::region::Region;

/// Byte of poisoned memory: a NaN in f32, f16 and bf16.
pub const POISON: u8 = 0xFF;

/// Why a backing refused an operation.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// The device or the machine has no memory for it.
    #[error("there is no memory left")]
    OutOfMemory,
    /// The memory cannot be passed to another process one chunk at a time.
    #[error("the chunks of host memory are one file")]
    OneFile,
    /// The addresses of this process refused it.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A system call failed.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
    /// The CUDA driver refused it.
    #[error(transparent)]
    Cuda(cuda::Error),
}

impl From<cuda::Error> for BackingError {
    fn from(error: cuda::Error) -> BackingError {
        if error.is_out_of_memory() { BackingError::OutOfMemory } else { BackingError::Cuda(error) }
    }
}

/// A word of the control page, 64 bits, which holds a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalWord {
    /// Weights of a layer are copied in; `None` = the global slab.
    Ready(Option<LayerId>),
    /// The engine has read the weights of a layer.
    Done(LayerId),
    /// The engine has used the KV of a layer.
    KvDone(LayerId),
}

/// How the target of an upload is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Soon, by this CPU.
    Ordinary,
    /// After more bytes than the CPU's caches hold.
    Bypass,
}

/// The memory of the chunks. [`crate::ChunkPool`] checks every call before it makes it: chunks exist, are named once,
/// and are neither released nor unmapped while a copy uses them.
pub trait Backing: Send + Sync + Debug {
    /// Allocates the memory of these chunks, or of none of them.
    ///
    /// # Errors
    /// [`BackingError::OutOfMemory`], or the error of a call.
    fn create(&self, chunks: &[ChunkId]) -> Result<(), BackingError>;

    /// Frees the memory of a chunk that is unmapped here and that no engine maps. On failure it still exists.
    fn release(&self, chunk: ChunkId) -> Result<(), BackingError>;

    /// Maps created chunks at the sidecar's own addresses, or none of them.
    fn map(&self, chunks: &[ChunkId]) -> Result<(), BackingError>;

    /// Unmaps one chunk from the sidecar's addresses. On failure it is still mapped.
    fn unmap(&self, chunk: ChunkId) -> Result<(), BackingError>;

    /// Returns a descriptor of one chunk for an engine. Nothing here keeps it.
    ///
    /// # Errors
    /// [`BackingError::OneFile`] if [`Backing::file`] holds all chunks.
    fn export(&self, chunk: ChunkId) -> Result<OwnedFd, BackingError>;

    /// Returns a lane without copies. One thread uses it.
    fn lane(&self) -> Box<dyn CopyLane>;

    /// Returns the file from which engines map all chunks, if there is one: chunk `c` starts at byte
    /// `c * chunk_bytes`.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Allocates `bytes` of host memory, zeroed, to and from which lanes copy at full speed.
    fn host_region(&self, bytes: u64) -> Result<Region, BackingError> {
        Region::new(bytes).map_err(|source| BackingError::Kernel { call: "mmap", source })
    }

    /// Returns the bytes that one transfer has in flight before a more urgent one gets the link; `None` = as many as it
    /// is given.
    fn piece_bytes(&self) -> Option<usize> {
        None
    }

    /// Whether the device reads and writes the words of the control page. It wakes no thread that waits for one.
    fn signals(&self) -> bool {
        false
    }

    /// Whether the chunk has all of its memory.
    fn is_backed(&self, _chunk: ChunkId) -> bool {
        true
    }

    /// Allocates the memory that a mapped chunk lacks.
    fn ensure_backed(&self, _chunk: ChunkId) -> Result<(), BackingError> {
        Ok(())
    }

    /// Whether a copy into the chunk neither allocates nor maps memory, so that its time is the link's.
    fn is_populated(&self, _chunk: ChunkId) -> bool {
        true
    }

    /// Makes a mapped chunk populated.
    fn populate(&self, _chunk: ChunkId) -> Result<(), BackingError> {
        Ok(())
    }

    /// Records that a fill has written the chunk.
    fn mark_written(&self, _chunk: ChunkId) {}
}

/// Copies in order. Calls may return before their copy is done; [`CopyLane::finish`] waits for all of them, and so does
/// a drop.
pub trait CopyLane {
    /// Copies `bytes` into `chunks`, taken as one sequence, from byte `offset` of the first one on.
    ///
    /// # Safety
    /// `bytes` is not written before the copy is done. The chunks are mapped until then and hold the bytes.
    unsafe fn upload(
        &mut self,
        chunks: &[ChunkId],
        offset: u64,
        bytes: &[u8],
        caching: Caching,
    ) -> Result<(), BackingError>;

    /// Copies from byte `offset` of a chunk.
    ///
    /// # Safety
    /// `bytes` is not accessed before the copy is done. The chunk is mapped until then and holds the bytes.
    unsafe fn download(&mut self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), BackingError>;

    /// Copies `bytes` bytes between chunks, `(chunk, offset)` each; the ranges may overlap on the host.
    ///
    /// # Safety
    /// The chunks are mapped until the copy is done and hold the bytes.
    unsafe fn copy(
        &mut self,
        from: (ChunkId, u64),
        to: (ChunkId, u64),
        bytes: u64,
    ) -> Result<(), BackingError>;

    /// Overwrites a chunk with [`POISON`].
    ///
    /// # Safety
    /// The chunk is mapped until it is done.
    unsafe fn poison(&mut self, chunk: ChunkId) -> Result<(), BackingError>;

    /// Makes later copies wait until the word is at least `generation`. The CPU has already seen that.
    fn wait(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError>;

    /// Sets the word to `generation` after the copies so far, if the device writes words. The CPU publishes it in any
    /// case.
    fn signal(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError>;

    /// Waits for all copies.
    fn finish(&mut self) -> Result<(), BackingError>;
}

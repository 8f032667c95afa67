//! The physical memory: one sealed memfd whose ranges are chunks, so that over-allocation fails as on a GPU.
//!
//! A chunk that does not exist has no pages and is `PROT_NONE` in this process, which catches stray accesses.
//! A chunk that is created lazily gets its pages with the first copy into it or on request, so pages that a
//! copy fills need not be zeroed first.

mod backing;
mod page_flags;
mod stream;

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use sluice_policy::ids::ChunkId;

use crate::mapping::MappingError;
use crate::mapping::reservation::Reservation;

/// Byte of poisoned memory: a NaN in f32, f16 and bf16.
pub const POISON: u8 = 0xFF;

/// Why the pool refused an operation.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The pool or the machine has no memory for the chunk; it was not created.
    #[error("cannot create {chunk:?}: {used_bytes} of {capacity_bytes} bytes are in use")]
    OutOfMemory {
        /// The chunk.
        chunk: ChunkId,
        /// Bytes in use.
        used_bytes: u64,
        /// Capacity of the pool, bytes.
        capacity_bytes: u64,
    },
    /// The chunk already exists.
    #[error("{chunk:?} already exists")]
    Exists {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The chunk does not exist.
    #[error("{chunk:?} does not exist")]
    Missing {
        /// The chunk.
        chunk: ChunkId,
    },
    /// A copy to or from the chunk is in progress.
    #[error("{chunk:?} is in use by a copy")]
    Busy {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The copy exceeds the chunk.
    #[error("{bytes} bytes at offset {offset} exceed a chunk of {chunk_bytes} bytes")]
    OutsideChunk {
        /// First byte.
        offset: u64,
        /// Length, bytes.
        bytes: u64,
        /// Size of a chunk, bytes.
        chunk_bytes: u64,
    },
    /// The pool's own mapping failed.
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
}

/// `states` entry of a chunk that does not exist.
const ABSENT: u32 = 0;
/// `states` entry of a chunk that exists without copies in progress; each copy adds one.
const CREATED: u32 = 1;
/// `states` entry of a chunk that is being created or released.
const CHANGING: u32 = u32::MAX;

/// Chunks `0..capacity` of one memfd; chunk `c` starts at byte `c * chunk_bytes`.
#[derive(Debug)]
pub struct ChunkPool {
    file: OwnedFd,
    view: Reservation,
    chunk_bytes: u64,
    states: Vec<AtomicU32>,
    page_flags: Vec<AtomicU8>,
    used_chunks: AtomicU32,
}

impl ChunkPool {
    /// Creates an empty pool: address space and a sparse file without memory.
    pub fn new(chunk_bytes: u64, capacity_chunks: u32) -> Result<ChunkPool, PoolError> {
        let page_bytes = rustix::param::page_size() as u64;
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes) {
            return Err(MappingError::ChunkSize { chunk_bytes, page_bytes }.into());
        }
        let chunks = u64::from(capacity_chunks);
        let bytes = chunks
            .checked_mul(chunk_bytes)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or(MappingError::TooLarge { chunks, chunk_bytes })?;
        let file = sealed_file(bytes)?;
        let view = Reservation::new(bytes as usize)?;
        let states = (0..capacity_chunks).map(|_| AtomicU32::new(ABSENT)).collect();
        let pages = (0..capacity_chunks).map(|_| AtomicU8::new(page_flags::NONE)).collect();
        Ok(ChunkPool { file, view, chunk_bytes, states, page_flags: pages, used_chunks: AtomicU32::new(0) })
    }

    /// Returns the memfd from which an engine maps chunks.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the size of a chunk, bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Returns the maximum number of chunks.
    pub fn capacity_chunks(&self) -> u32 {
        self.states.len() as u32
    }

    /// Returns the bytes of the existing chunks.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.used_chunks.load(Ordering::Acquire)) * self.chunk_bytes
    }

    /// Whether the chunk exists.
    pub fn exists(&self, chunk: ChunkId) -> bool {
        let state = self.states.get(chunk.index()).map_or(ABSENT, |state| state.load(Ordering::Acquire));
        state != ABSENT && state != CHANGING
    }

    /// Releases a chunk and its pages. The caller ensures that no engine maps it.
    pub fn release(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let state = self.states.get(chunk.index()).ok_or(PoolError::Missing { chunk })?;
        compare_exchange(state, CREATED, CHANGING).map_err(|found| state_error(chunk, found))?;
        let result = self.punch_hole(chunk);
        self.clear_page_flags(chunk);
        self.used_chunks.fetch_sub(u32::from(result.is_ok()), Ordering::AcqRel);
        state.store(if result.is_ok() { ABSENT } else { CREATED }, Ordering::Release);
        result
    }

    /// Copies `bytes` into the chunk, starting at byte `offset`.
    pub fn write(&self, chunk: ChunkId, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        let pin = self.pin(chunk, offset, bytes.len() as u64)?;
        if self.write_via_file(chunk, offset, bytes)? {
            return Ok(());
        }
        // SAFETY: the pin keeps the chunk mapped in the pool's view, and `pin` checked that the range is
        // within it. The engine may read or write the same shared pages; no Rust reference to them exists in
        // this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pin.at, bytes.len()) };
        Ok(())
    }

    /// As [`ChunkPool::write`], but bypasses the cache: for chunks of a slab that is larger than the caches.
    pub fn write_streaming(&self, chunk: ChunkId, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        let pin = self.pin(chunk, offset, bytes.len() as u64)?;
        if self.write_via_file(chunk, offset, bytes)? {
            return Ok(());
        }
        // SAFETY: as in `write`; `bytes` is outside the pool's view, so the ranges do not overlap.
        unsafe { stream::copy(bytes.as_ptr(), pin.at, bytes.len()) };
        Ok(())
    }

    /// Copies from the chunk, starting at byte `offset`.
    pub fn read(&self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        let pin = self.pin(chunk, offset, bytes.len() as u64)?;
        // SAFETY: as in `write`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(pin.at, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies `bytes` bytes between chunks, `(chunk, offset)` each; the ranges may overlap.
    pub fn copy(&self, from: (ChunkId, u64), to: (ChunkId, u64), bytes: u64) -> Result<(), PoolError> {
        let source = self.pin(from.0, from.1, bytes)?;
        let target = self.pin(to.0, to.1, bytes)?;
        // SAFETY: both pins keep their chunks mapped and both ranges were checked; `copy` allows an overlap.
        unsafe { std::ptr::copy(source.at, target.at, bytes as usize) };
        Ok(())
    }

    /// Overwrites the chunk with [`POISON`], so that a reader of its old contents computes NaN.
    pub fn poison(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let pin = self.pin(chunk, 0, self.chunk_bytes)?;
        // SAFETY: as in `write`; the range is the whole chunk.
        unsafe { std::ptr::write_bytes(pin.at, POISON, self.chunk_bytes as usize) };
        Ok(())
    }

    fn pin(&self, chunk: ChunkId, offset: u64, bytes: u64) -> Result<ChunkPin<'_>, PoolError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.chunk_bytes) {
            return Err(PoolError::OutsideChunk { offset, bytes, chunk_bytes: self.chunk_bytes });
        }
        let state = self.states.get(chunk.index()).ok_or(PoolError::Missing { chunk })?;
        let more = |found| (found != ABSENT && found != CHANGING).then(|| found + 1);
        let pinned = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        pinned.map_err(|_| PoolError::Missing { chunk })?;
        Ok(ChunkPin { state, at: self.view.at(self.chunk_offset(chunk) as usize + offset as usize) })
    }

    fn chunk_offset(&self, chunk: ChunkId) -> u64 {
        u64::from(chunk.0) * self.chunk_bytes
    }

    fn kernel_error(&self, chunk: ChunkId, error: MappingError) -> PoolError {
        match error {
            // A populating page fault that finds no memory reports EFAULT.
            MappingError::Kernel { source: Errno::NOMEM | Errno::NOSPC | Errno::FAULT, .. } => {
                self.out_of_memory(chunk)
            }
            MappingError::Kernel { call, source } => PoolError::Kernel { call, source },
            other => other.into(),
        }
    }

    fn out_of_memory(&self, chunk: ChunkId) -> PoolError {
        let capacity_bytes = u64::from(self.capacity_chunks()) * self.chunk_bytes;
        PoolError::OutOfMemory { chunk, used_bytes: self.used_bytes(), capacity_bytes }
    }
}

/// Prevents the release of a chunk.
struct ChunkPin<'a> {
    state: &'a AtomicU32,
    at: *mut u8,
}

impl Drop for ChunkPin<'_> {
    fn drop(&mut self) {
        self.state.fetch_sub(1, Ordering::AcqRel);
    }
}

fn compare_exchange(state: &AtomicU32, from: u32, to: u32) -> Result<u32, u32> {
    state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
}

fn state_error(chunk: ChunkId, state: u32) -> PoolError {
    if state == ABSENT { PoolError::Missing { chunk } } else { PoolError::Busy { chunk } }
}

/// Creates a memfd of constant size: no peer can truncate it, which would raise SIGBUS in this process.
fn sealed_file(bytes: u64) -> Result<OwnedFd, PoolError> {
    let kernel = |call| move |source| PoolError::Kernel { call, source };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sluice-chunks", flags).map_err(kernel("memfd_create"))?;
    rustix::fs::ftruncate(&file, bytes).map_err(kernel("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(kernel("fcntl(ADD_SEALS)"))?;
    Ok(file)
}

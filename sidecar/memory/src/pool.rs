//! The physical memory: one sealed memfd whose ranges are chunks, so that over-allocation fails exactly as on a GPU.
//!
//! A chunk that was not created has no pages and is `PROT_NONE` in this process, so it cannot be touched by mistake. One that
//! was promised exists, and its pages come with what is copied into it, or when they are asked for: a page that a copy brings
//! need not be zeroed first.

mod backing;
mod stream;

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use sluice_policy::ids::ChunkId;

use crate::mapping::MappingError;
use crate::mapping::reservation::Reservation;

/// What poisoned memory holds: a NaN in f32, f16 and bf16.
pub const POISON: u8 = 0xFF;

/// Why the pool refused.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The capacity or the machine has no memory left for the chunk. Nothing of it exists.
    #[error("no memory for {chunk:?}: {used_bytes} of {capacity_bytes} bytes are in use")]
    OutOfMemory {
        /// Which.
        chunk: ChunkId,
        /// In use.
        used_bytes: u64,
        /// At most.
        capacity_bytes: u64,
    },
    /// The chunk exists already.
    #[error("{chunk:?} exists already")]
    Exists {
        /// Which.
        chunk: ChunkId,
    },
    /// The chunk does not exist.
    #[error("{chunk:?} was never created")]
    Missing {
        /// Which.
        chunk: ChunkId,
    },
    /// Somebody copies to or from the chunk.
    #[error("{chunk:?} is being copied to or from")]
    Busy {
        /// Which.
        chunk: ChunkId,
    },
    /// A copy would leave the chunk.
    #[error("{bytes} bytes at {offset} do not fit a chunk of {chunk_bytes}")]
    OutsideChunk {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Of a chunk.
        chunk_bytes: u64,
    },
    /// The address space of the pool's own view.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The kernel refused.
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
/// ... of one that exists and nobody copies; each copy in flight adds one.
const CREATED: u32 = 1;
/// ... of one that is being created or released.
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
    /// An empty pool: address space and a sparse file, no memory yet.
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
        let pages = (0..capacity_chunks).map(|_| AtomicU8::new(backing::NONE)).collect();
        Ok(ChunkPool { file, view, chunk_bytes, states, page_flags: pages, used_chunks: AtomicU32::new(0) })
    }

    /// The memfd: what an engine maps chunks from.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Chunks that may exist.
    pub fn capacity_chunks(&self) -> u32 {
        self.states.len() as u32
    }

    /// Bytes of the chunks that exist.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.used_chunks.load(Ordering::Acquire)) * self.chunk_bytes
    }

    /// Whether the chunk exists.
    pub fn exists(&self, chunk: ChunkId) -> bool {
        let state = self.states.get(chunk.index()).map_or(ABSENT, |state| state.load(Ordering::Acquire));
        state != ABSENT && state != CHANGING
    }

    /// Gives a chunk's pages back to the machine. The caller has seen to it that no engine maps it.
    pub fn release(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let state = self.states.get(chunk.index()).ok_or(PoolError::Missing { chunk })?;
        compare_exchange(state, CREATED, CHANGING).map_err(|found| state_error(chunk, found))?;
        let result = self.punch_hole(chunk);
        self.clear_page_flags(chunk);
        self.used_chunks.fetch_sub(u32::from(result.is_ok()), Ordering::AcqRel);
        state.store(if result.is_ok() { ABSENT } else { CREATED }, Ordering::Release);
        result
    }

    /// Copies `bytes` into the chunk from byte `offset` on.
    pub fn write(&self, chunk: ChunkId, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        let pin = self.pin(chunk, offset, bytes.len() as u64)?;
        if self.write_via_file(chunk, offset, bytes)? {
            return Ok(());
        }
        // SAFETY: the pin keeps the chunk mapped in our view, and the range was checked to lie in it. The engine may
        // read or write the same shared pages; no Rust reference to them exists in this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pin.at, bytes.len()) };
        Ok(())
    }

    /// As [`Pool::write`], past the cache: for chunks of a slab that is larger than any cache.
    pub fn write_streaming(&self, chunk: ChunkId, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        let pin = self.pin(chunk, offset, bytes.len() as u64)?;
        if self.write_via_file(chunk, offset, bytes)? {
            return Ok(());
        }
        // SAFETY: as in `write`; `bytes` lies outside of the pool's view, so nothing overlaps.
        unsafe { stream::copy(bytes.as_ptr(), pin.at, bytes.len()) };
        Ok(())
    }

    /// Copies out of the chunk from byte `offset` on.
    pub fn read(&self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        let pin = self.pin(chunk, offset, bytes.len() as u64)?;
        // SAFETY: as in `write`, the other way round.
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

    /// Overwrites the chunk with [`POISON`], so that whoever reads its old contents computes NaN.
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
            // A populating fault that finds no memory reports EFAULT.
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

/// Keeps a chunk from being released.
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

/// A memfd of constant size: no peer can truncate it under us and make us take SIGBUS.
fn sealed_file(bytes: u64) -> Result<OwnedFd, PoolError> {
    let kernel = |call| move |source| PoolError::Kernel { call, source };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sluice-chunks", flags).map_err(kernel("memfd_create"))?;
    rustix::fs::ftruncate(&file, bytes).map_err(kernel("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(kernel("fcntl(ADD_SEALS)"))?;
    Ok(file)
}

//! The chunks that exist, over a [`Backing`], so that over-allocation fails as on a GPU.
//!
//! A chunk is created once and used by one owner after the other; only growing and lending create and release chunks.
//! A chunk that does not exist has no memory and is not mapped in this process, which catches stray accesses. A chunk
//! that is created lazily may get its memory with the first copy into it or on request.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_policy::ids::ChunkId;

use crate::backing::{Backing, BackingError, CopyLane, Region};
use crate::host_backing::HostBacking;
use crate::mapping::MappingError;

/// Maximum number of chunks that are exported at a time, as many as one message carries. An export takes 0.6 ms on an
/// H200 (docs/gpu-probe.md).
pub const EXPORT_CHUNKS: usize = 64;

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
    /// More chunks than one message carries.
    #[error("{chunks} chunks are exported at a time, {EXPORT_CHUNKS} are allowed")]
    ManyExports {
        /// Requested chunks.
        chunks: usize,
    },
    /// The pool has a size that cannot be.
    #[error(transparent)]
    Size(#[from] MappingError),
    /// The memory behind the pool failed.
    #[error(transparent)]
    Backing(BackingError),
}

/// `states` entry of a chunk that does not exist.
const ABSENT: u32 = 0;
/// `states` entry of a chunk that exists without copies in progress; each copy adds one.
const CREATED: u32 = 1;
/// `states` entry of a chunk that is being created or released.
const CHANGING: u32 = u32::MAX;

/// Chunks `0..capacity`.
#[derive(Debug)]
pub struct ChunkPool {
    backing: Box<dyn Backing>,
    chunk_bytes: u64,
    states: Vec<AtomicU32>,
    used_chunks: AtomicU32,
}

impl ChunkPool {
    /// Creates an empty pool of host memory: address space and a sparse file without memory.
    pub fn new(chunk_bytes: u64, capacity_chunks: u32) -> Result<ChunkPool, PoolError> {
        let backing = HostBacking::new(chunk_bytes, capacity_chunks).map_err(|error| match error {
            BackingError::Mapping(error) => PoolError::Size(error),
            other => PoolError::Backing(other),
        })?;
        Ok(ChunkPool::over(Box::new(backing), chunk_bytes, capacity_chunks))
    }

    /// Creates an empty pool over `backing`, which has room for as many chunks of this size.
    pub fn over(backing: Box<dyn Backing>, chunk_bytes: u64, capacity_chunks: u32) -> ChunkPool {
        let states = (0..capacity_chunks).map(|_| AtomicU32::new(ABSENT)).collect();
        ChunkPool { backing, chunk_bytes, states, used_chunks: AtomicU32::new(0) }
    }

    /// Returns the file from which engines map chunks, if one holds all of them ([`Backing::file`]).
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.backing.file()
    }

    /// Returns a descriptor of each chunk for an engine, at most [`EXPORT_CHUNKS`]. A chunk of a GPU has one for its
    /// first engine; later calls make one.
    pub fn export(&self, chunks: &[ChunkId]) -> Result<Vec<OwnedFd>, PoolError> {
        if chunks.len() > EXPORT_CHUNKS {
            return Err(PoolError::ManyExports { chunks: chunks.len() });
        }
        let export = |chunk: &ChunkId| {
            let _pin = self.pin(*chunk)?;
            self.backing.export(*chunk).map_err(|error| self.error(*chunk, error))
        };
        chunks.iter().map(export).collect()
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

    /// Creates a chunk with all its memory. On failure the chunk does not exist.
    pub fn create(&self, chunk: ChunkId) -> Result<(), PoolError> {
        self.create_all(&[chunk])
    }

    /// Creates chunks with all their memory, ready for copies. On failure none of them exists.
    pub(crate) fn create_all(&self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        self.create_lazy(chunks)?;
        let made = chunks.iter().try_for_each(|&chunk| {
            let populated = self.backing.ensure_backed(chunk).and_then(|()| self.backing.populate(chunk));
            populated.map_err(|error| self.error(chunk, error))
        });
        made.inspect_err(|_| {
            let undone = chunks.iter().try_for_each(|chunk| self.release(*chunk));
            assert!(undone.is_ok(), "half a chunk can be given back: {undone:?}");
        })
    }

    /// Creates chunks that may get their memory with the data written to them or by [`ChunkPool::ensure_backed`]. On
    /// failure none of them exists.
    pub fn create_lazy(&self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        for (at, chunk) in chunks.iter().enumerate() {
            if let Err(error) = self.begin_change(*chunk) {
                self.end_changes(&chunks[..at], ABSENT);
                return Err(error);
            }
        }
        if let Err(error) = self.create_mapped(chunks) {
            self.end_changes(chunks, ABSENT);
            return Err(self.error(chunks[0], error));
        }
        self.used_chunks.fetch_add(chunks.len() as u32, Ordering::AcqRel);
        self.end_changes(chunks, CREATED);
        Ok(())
    }

    fn create_mapped(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        self.backing.create(chunks)?;
        self.backing.map(chunks).inspect_err(|_| {
            let undone = chunks.iter().try_for_each(|chunk| self.backing.release(*chunk));
            assert!(undone.is_ok(), "what was just created can be released: {undone:?}");
        })
    }

    /// Releases a chunk and its memory. The caller ensures that no engine maps it.
    pub fn release(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let state = self.states.get(chunk.index()).ok_or(PoolError::Missing { chunk })?;
        compare_exchange(state, CREATED, CHANGING).map_err(|found| state_error(chunk, found))?;
        let result = self.release_mapped(chunk);
        self.used_chunks.fetch_sub(u32::from(result.is_ok()), Ordering::AcqRel);
        state.store(if result.is_ok() { ABSENT } else { CREATED }, Ordering::Release);
        result.map_err(|error| self.error(chunk, error))
    }

    /// On failure the chunk is mapped again, so that it stays usable.
    fn release_mapped(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.backing.unmap(chunk)?;
        self.backing.release(chunk).inspect_err(|_| {
            let mapped = self.backing.map(&[chunk]);
            assert!(mapped.is_ok(), "what was just unmapped can be mapped: {mapped:?}");
        })
    }

    /// Allocates all memory of the chunk, so that accesses through any mapping allocate none.
    pub fn ensure_backed(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let _pin = self.pin(chunk)?;
        self.backing.ensure_backed(chunk).map_err(|error| self.error(chunk, error))
    }

    /// Whether the chunk has all its memory.
    pub fn is_backed(&self, chunk: ChunkId) -> bool {
        self.backing.is_backed(chunk)
    }

    /// Records that the chunk has been filled: later writes find its memory.
    pub(crate) fn mark_written(&self, chunk: ChunkId) {
        self.backing.mark_written(chunk);
    }

    /// Whether a write to the chunk neither allocates nor maps memory.
    pub(crate) fn is_populated(&self, chunk: ChunkId) -> bool {
        self.backing.is_populated(chunk)
    }

    pub(crate) fn backing_lane(&self) -> Box<dyn CopyLane> {
        self.backing.lane()
    }

    pub(crate) fn host_region(&self, bytes: u64) -> Result<Region, BackingError> {
        self.backing.host_region(bytes)
    }

    pub(crate) fn piece_bytes(&self) -> Option<usize> {
        self.backing.piece_bytes()
    }

    pub(crate) fn signals(&self) -> bool {
        self.backing.signals()
    }

    /// Checks a range of bytes of `chunks` chunks.
    pub(crate) fn check_range(&self, chunks: usize, offset: u64, bytes: u64) -> Result<(), PoolError> {
        let chunk_bytes = self.chunk_bytes;
        if offset.checked_add(bytes).is_none_or(|end| end > chunks as u64 * chunk_bytes) {
            return Err(PoolError::OutsideChunk { offset, bytes, chunk_bytes });
        }
        Ok(())
    }

    pub(crate) fn pin(&self, chunk: ChunkId) -> Result<ChunkPin<'_>, PoolError> {
        let state = self.states.get(chunk.index()).ok_or(PoolError::Missing { chunk })?;
        let more = |found| (found != ABSENT && found != CHANGING).then(|| found + 1);
        let pinned = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        pinned.map_err(|_| PoolError::Missing { chunk })?;
        Ok(ChunkPin { state })
    }

    /// Excludes creation, use and release of the chunk until [`ChunkPool::end_changes`].
    fn begin_change(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let state = self.states.get(chunk.index()).ok_or_else(|| self.out_of_memory(chunk))?;
        compare_exchange(state, ABSENT, CHANGING).map(drop).map_err(|_| PoolError::Exists { chunk })
    }

    fn end_changes(&self, chunks: &[ChunkId], state: u32) {
        chunks.iter().for_each(|chunk| self.states[chunk.index()].store(state, Ordering::Release));
    }

    pub(crate) fn error(&self, chunk: ChunkId, error: BackingError) -> PoolError {
        match error {
            BackingError::OutOfMemory => self.out_of_memory(chunk),
            other => PoolError::Backing(other),
        }
    }

    fn out_of_memory(&self, chunk: ChunkId) -> PoolError {
        let capacity_bytes = u64::from(self.capacity_chunks()) * self.chunk_bytes;
        PoolError::OutOfMemory { chunk, used_bytes: self.used_bytes(), capacity_bytes }
    }
}

/// Prevents the release of a chunk.
#[derive(Debug)]
pub(crate) struct ChunkPin<'a> {
    state: &'a AtomicU32,
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

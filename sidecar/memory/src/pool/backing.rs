//! Allocates the pages of chunks.
//!
//! The first fill of a chunk allocates its pages through file writes: the kernel takes a whole written page
//! as it is, while it zeroes a page that is first touched through a mapping. So the memory of a slab is
//! allocated during the copy. Only mappings allocate huge pages.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;
use sluice_policy::ids::ChunkId;

use super::page_flags::{BACKED, NONE, POPULATED, WRITTEN};
use super::{ABSENT, CHANGING, CREATED, ChunkPool, PoolError, compare_exchange};
use crate::mapping::MappingError;

/// Chunks whose size is a multiple of this use huge pages if the kernel allows them.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl ChunkPool {
    /// Creates a chunk with all its pages, which read as zeros. On failure the chunk does not exist.
    pub fn create(&self, chunk: ChunkId) -> Result<(), PoolError> {
        self.create_all(&[chunk])
    }

    /// Creates chunks with all their pages, mapped for writing. On failure none of them exists.
    pub(crate) fn create_all(&self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        self.create_lazy(chunks)?;
        let made = chunks
            .iter()
            .try_for_each(|chunk| self.ensure_backed(*chunk).and_then(|()| self.populate(*chunk)));
        made.inspect_err(|_| self.undo_create(chunks))
    }

    /// Creates chunks that get their pages with the data written to them or by [`ChunkPool::ensure_backed`];
    /// until then they read as zeros. On failure none of them exists.
    pub fn create_lazy(&self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        for (at, chunk) in chunks.iter().enumerate() {
            if let Err(error) = self.begin_change(*chunk) {
                self.end_changes(&chunks[..at], ABSENT);
                return Err(error);
            }
        }
        for run in contiguous_runs(chunks) {
            if let Err(error) = self.map_view(&chunks[run]) {
                let undone = chunks.iter().try_for_each(|chunk| self.unmap_view(*chunk));
                assert!(undone.is_ok(), "what was just mapped can be unmapped: {undone:?}");
                self.end_changes(chunks, ABSENT);
                return Err(error);
            }
        }
        self.used_chunks.fetch_add(chunks.len() as u32, Ordering::AcqRel);
        self.end_changes(chunks, CREATED);
        Ok(())
    }

    /// Allocates all pages of the chunk, so that accesses through any mapping allocate none.
    pub fn ensure_backed(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let _pin = self.pin(chunk, 0, self.chunk_bytes)?;
        if self.is_backed(chunk) {
            return Ok(());
        }
        if self.uses_huge_pages() {
            self.populate(chunk)?;
        }
        self.allocate(chunk)?;
        self.page_flags[chunk.index()].fetch_or(BACKED, Ordering::AcqRel);
        Ok(())
    }

    /// Whether the chunk has all its pages.
    pub fn is_backed(&self, chunk: ChunkId) -> bool {
        self.page_flags(chunk) & BACKED != 0
    }

    /// Records that the chunk has been filled: later writes find its pages.
    pub(crate) fn mark_written(&self, chunk: ChunkId) {
        self.page_flags[chunk.index()].fetch_or(WRITTEN, Ordering::AcqRel);
    }

    /// Whether a write to the chunk neither allocates nor maps pages.
    pub(crate) fn is_populated(&self, chunk: ChunkId) -> bool {
        self.page_flags(chunk) & POPULATED != 0
    }

    /// Writes `bytes` through the file, which allocates lacking pages, if no fill has written the chunk yet.
    /// Returns false if the caller must write to the view instead.
    pub(super) fn write_via_file(
        &self,
        chunk: ChunkId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, PoolError> {
        let pages = self.page_flags(chunk);
        if pages & POPULATED != 0 {
            return Ok(false);
        }
        if pages & WRITTEN != 0 || self.uses_huge_pages() {
            return self.populate(chunk).map(|()| false);
        }
        let mut written = 0;
        while written < bytes.len() {
            let at = self.chunk_offset(chunk) + offset + written as u64;
            match rustix::io::pwrite(self.fd(), &bytes[written..], at) {
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(source) => {
                    let error = MappingError::Kernel { call: "pwrite", source };
                    return Err(self.kernel_error(chunk, error));
                }
            }
        }
        Ok(true)
    }

    /// Frees the pages and then unmaps the chunk from the view. In this order a chunk stays usable if the
    /// kernel fails to free its pages.
    pub(super) fn punch_hole(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd(), flags, self.chunk_offset(chunk), self.chunk_bytes)
            .map_err(|source| PoolError::Kernel { call: "fallocate(PUNCH_HOLE)", source })?;
        self.unmap_view(chunk)
    }

    /// Resets the flags of a released chunk.
    pub(super) fn clear_page_flags(&self, chunk: ChunkId) {
        self.page_flags[chunk.index()].store(NONE, Ordering::Release);
    }

    fn page_flags(&self, chunk: ChunkId) -> u8 {
        self.page_flags.get(chunk.index()).map_or(NONE, |pages| pages.load(Ordering::Acquire))
    }

    fn uses_huge_pages(&self) -> bool {
        self.chunk_bytes.is_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Excludes creation, use and release of the chunk until [`ChunkPool::end_changes`].
    fn begin_change(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let state = self.states.get(chunk.index()).ok_or_else(|| self.out_of_memory(chunk))?;
        compare_exchange(state, ABSENT, CHANGING).map(drop).map_err(|_| PoolError::Exists { chunk })
    }

    fn end_changes(&self, chunks: &[ChunkId], state: u32) {
        chunks.iter().for_each(|chunk| self.states[chunk.index()].store(state, Ordering::Release));
    }

    fn undo_create(&self, chunks: &[ChunkId]) {
        let undone = chunks.iter().try_for_each(|chunk| self.release(*chunk));
        assert!(undone.is_ok(), "half a chunk can be given back: {undone:?}");
    }

    /// Maps contiguous chunks into the pool's own view.
    fn map_view(&self, run: &[ChunkId]) -> Result<(), PoolError> {
        let Some(&first) = run.first() else { return Ok(()) };
        let (start, bytes) = (self.chunk_offset(first), run.len() * self.chunk_bytes as usize);
        let shown = self.view.map(start as usize, bytes, self.fd(), start);
        shown.map_err(|error| self.kernel_error(first, error))?;
        if self.uses_huge_pages() {
            // Only advice: without huge pages the chunk uses small ones.
            let _ = self.view.advise(start as usize, bytes, Advice::LinuxHugepage);
        }
        Ok(())
    }

    fn unmap_view(&self, chunk: ChunkId) -> Result<(), PoolError> {
        Ok(self.view.unmap(self.chunk_offset(chunk) as usize, self.chunk_bytes as usize)?)
    }

    /// Maps all pages into the view and allocates lacking ones, zeroed.
    fn populate(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let (start, bytes) = (self.chunk_offset(chunk) as usize, self.chunk_bytes as usize);
        let populated = self.view.advise(start, bytes, Advice::LinuxPopulateWrite);
        populated.map_err(|error| self.kernel_error(chunk, error))?;
        self.page_flags[chunk.index()].fetch_or(POPULATED, Ordering::AcqRel);
        Ok(())
    }

    fn allocate(&self, chunk: ChunkId) -> Result<(), PoolError> {
        rustix::fs::fallocate(
            self.fd(),
            FallocateFlags::KEEP_SIZE,
            self.chunk_offset(chunk),
            self.chunk_bytes,
        )
        .map_err(|source| self.kernel_error(chunk, MappingError::Kernel { call: "fallocate", source }))
    }
}

/// Splits `chunks` into runs of consecutive chunks, each of which takes one system call.
fn contiguous_runs(chunks: &[ChunkId]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut from = 0;
    std::iter::from_fn(move || {
        let run = chunks[from..].chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)).next()?;
        let range = from..from + run.len();
        from = range.end;
        Some(range)
    })
}

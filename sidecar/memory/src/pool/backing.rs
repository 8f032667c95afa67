//! Where the pages of chunks come from.
//!
//! A fill brings the pages of a chunk that nobody has written yet: the kernel takes a whole page of a file's write as it is,
//! while one that is touched in a mapping is zeroed before it is overwritten. So a slab's memory is made while it is
//! copied. Huge pages come by mappings only.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;
use sluice_policy::ids::ChunkId;

use super::{ABSENT, CHANGING, CREATED, ChunkPool, PoolError, compare_exchange};
use crate::mapping::MappingError;

/// Chunks that are a multiple of this are backed by huge pages where the kernel allows it.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// `pages` entry of a chunk of which nothing is known: it may lack all pages.
pub(super) const NONE: u8 = 0;
/// Bit of one that a fill has written: its pages are there, and hold something.
const WRITTEN: u8 = 1;
/// Bit of one that has all its pages, whatever they hold.
const BACKED: u8 = 2;
/// Bit of one whose pages this process has mapped: a copy into it costs nothing but the copy.
const POPULATED: u8 = 4;

impl ChunkPool {
    /// Creates a chunk with all its pages, which read as zeros. A failure leaves nothing.
    pub fn create(&self, chunk: ChunkId) -> Result<(), PoolError> {
        self.create_all(&[chunk])
    }

    /// Creates chunks with all their pages, ready to be written. A failure leaves none of them.
    pub(crate) fn create_all(&self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        self.create_lazy(chunks)?;
        let made = chunks
            .iter()
            .try_for_each(|chunk| self.ensure_backed(*chunk).and_then(|()| self.populate(*chunk)));
        made.inspect_err(|_| self.undo_create(chunks))
    }

    /// Creates chunks whose pages come with what is written to them, or with [`Pool::back`]: until then they read as zeros.
    /// A failure leaves none of them.
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

    /// Sees to it that the chunk has all its pages: who touches it through any mapping takes no memory of the machine.
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

    /// The chunk has been filled: what is written from now on finds its pages.
    pub(crate) fn mark_written(&self, chunk: ChunkId) {
        self.page_flags[chunk.index()].fetch_or(WRITTEN, Ordering::AcqRel);
    }

    /// Whether a write to the chunk makes or maps no pages first.
    pub(crate) fn is_populated(&self, chunk: ChunkId) -> bool {
        self.page_flags(chunk) & POPULATED != 0
    }

    /// Writes `bytes` as a file's, with the pages that hold them if they are lacking, where no fill has been yet; false:
    /// write to the view.
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

    /// Gives the pages back and hides the chunk, in this order: a chunk whose pages the kernel keeps stays one that can be used.
    pub(super) fn punch_hole(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd(), flags, self.chunk_offset(chunk), self.chunk_bytes)
            .map_err(|source| PoolError::Kernel { call: "fallocate(PUNCH_HOLE)", source })?;
        self.unmap_view(chunk)
    }

    /// The chunk has gone, and its pages with it.
    pub(super) fn clear_page_flags(&self, chunk: ChunkId) {
        self.page_flags[chunk.index()].store(NONE, Ordering::Release);
    }

    fn page_flags(&self, chunk: ChunkId) -> u8 {
        self.page_flags.get(chunk.index()).map_or(NONE, |pages| pages.load(Ordering::Acquire))
    }

    fn uses_huge_pages(&self) -> bool {
        self.chunk_bytes.is_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Nobody else may create, use or release the chunk until [`Pool::end_claims`].
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

    /// Maps neighbouring chunks into the pool's own view.
    fn map_view(&self, run: &[ChunkId]) -> Result<(), PoolError> {
        let Some(&first) = run.first() else { return Ok(()) };
        let (start, bytes) = (self.chunk_offset(first), run.len() * self.chunk_bytes as usize);
        let shown = self.view.map(start as usize, bytes, self.fd(), start);
        shown.map_err(|error| self.kernel_error(first, error))?;
        if self.uses_huge_pages() {
            // Only advice: without huge pages the chunk consists of small ones.
            let _ = self.view.advise(start as usize, bytes, Advice::LinuxHugepage);
        }
        Ok(())
    }

    fn unmap_view(&self, chunk: ChunkId) -> Result<(), PoolError> {
        Ok(self.view.unmap(self.chunk_offset(chunk) as usize, self.chunk_bytes as usize)?)
    }

    /// Maps all pages into the view, the lacking ones zeroed.
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

/// The parts of `chunks` in which each follows its predecessor: one call of the kernel is enough for each.
fn contiguous_runs(chunks: &[ChunkId]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut from = 0;
    std::iter::from_fn(move || {
        let run = chunks[from..].chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)).next()?;
        let range = from..from + run.len();
        from = range.end;
        Some(range)
    })
}

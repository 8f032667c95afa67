//! Host memory that stands in for device memory: one sealed memfd whose ranges are chunks.
//!
//! A chunk that is not mapped is `PROT_NONE` in this process. Pages that a copy fills need not be zeroed first, so a
//! chunk gets its pages with the first copy into it, or on request.

mod chunks;
mod page_flags;
mod stream;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use sluice_policy::ids::{ChunkId, Generation};

use crate::backing::{Backing, BackingError, Caching, CopyLane, POISON, SignalWord};
use crate::mapping::MappingError;
use crate::mapping::page_size::{check_chunk_bytes, page_bytes};
use chunks::HostChunks;

/// Chunks of a memfd; chunk `c` starts at byte `c * chunk_bytes`.
#[derive(Debug)]
pub struct HostBacking(Arc<HostChunks>);

impl HostBacking {
    /// Creates address space and a sparse file without memory.
    pub fn new(chunk_bytes: u64, capacity_chunks: u32) -> Result<HostBacking, BackingError> {
        check_chunk_bytes(chunk_bytes, page_bytes())?;
        let chunks = u64::from(capacity_chunks);
        let bytes = chunks
            .checked_mul(chunk_bytes)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or(MappingError::TooLarge { chunks, chunk_bytes })?;
        Ok(HostBacking(Arc::new(HostChunks::new(chunk_bytes, capacity_chunks, bytes)?)))
    }
}

impl Backing for HostBacking {
    /// The pages come later.
    fn create(&self, _chunks: &[ChunkId]) -> Result<(), BackingError> {
        Ok(())
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.0.punch_hole(chunk)
    }

    fn map(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        for run in chunks.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)) {
            if let Err(error) = self.0.map_view(run) {
                let undone = chunks.iter().try_for_each(|chunk| self.0.unmap_view(*chunk));
                assert!(undone.is_ok(), "what was just mapped can be unmapped: {undone:?}");
                return Err(error);
            }
        }
        Ok(())
    }

    fn unmap(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.0.unmap_view(chunk)
    }

    fn export(&self, _chunk: ChunkId) -> Result<OwnedFd, BackingError> {
        Err(BackingError::OneFile)
    }

    fn lane(&self) -> Box<dyn CopyLane> {
        Box::new(HostLane(self.0.clone()))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.file())
    }

    fn is_backed(&self, chunk: ChunkId) -> bool {
        self.0.has(chunk, page_flags::BACKED)
    }

    fn ensure_backed(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.0.ensure_backed(chunk)
    }

    fn is_populated(&self, chunk: ChunkId) -> bool {
        self.0.has(chunk, page_flags::POPULATED)
    }

    fn populate(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.0.populate(chunk)
    }

    fn mark_written(&self, chunk: ChunkId) {
        self.0.set(chunk, page_flags::WRITTEN);
    }
}

/// Copies by this CPU. Each call returns when its copy is done.
struct HostLane(Arc<HostChunks>);

impl HostLane {
    /// # Safety
    /// As for [`CopyLane::upload`], for one chunk.
    unsafe fn write(
        &self,
        chunk: ChunkId,
        offset: u64,
        bytes: &[u8],
        caching: Caching,
    ) -> Result<(), BackingError> {
        if self.0.write_via_file(chunk, offset, bytes)? {
            return Ok(());
        }
        let to = self.0.at(chunk, offset);
        let (from, bytes) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the chunk is mapped in the view and holds the range; `bytes` is outside the view, so the ranges do
        // not overlap. The engine may read or write the same shared pages; no Rust reference to them exists in this
        // process.
        unsafe {
            match caching {
                Caching::Ordinary => std::ptr::copy_nonoverlapping(from, to, bytes),
                Caching::Bypass => stream::copy(from, to, bytes),
            }
        }
        Ok(())
    }
}

impl CopyLane for HostLane {
    unsafe fn upload(
        &mut self,
        chunks: &[ChunkId],
        offset: u64,
        bytes: &[u8],
        caching: Caching,
    ) -> Result<(), BackingError> {
        let chunk_bytes = self.0.chunk_bytes();
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            let chunk = chunks[(at / chunk_bytes) as usize];
            let here = left.len().min((chunk_bytes - at % chunk_bytes) as usize);
            let (part, rest) = left.split_at(here);
            // SAFETY: the caller's promise for a part of the bytes and one of the chunks.
            unsafe { self.write(chunk, at % chunk_bytes, part, caching) }?;
            (at, left) = (at + here as u64, rest);
        }
        Ok(())
    }

    unsafe fn download(&mut self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), BackingError> {
        let from = self.0.at(chunk, offset);
        // SAFETY: as in `write`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn copy(
        &mut self,
        from: (ChunkId, u64),
        to: (ChunkId, u64),
        bytes: u64,
    ) -> Result<(), BackingError> {
        let (from, to) = (self.0.at(from.0, from.1), self.0.at(to.0, to.1));
        // SAFETY: both chunks are mapped and hold their ranges; `copy` allows an overlap.
        unsafe { std::ptr::copy(from, to, bytes as usize) };
        Ok(())
    }

    unsafe fn poison(&mut self, chunk: ChunkId) -> Result<(), BackingError> {
        // SAFETY: as in `write`; the range is the whole chunk.
        unsafe { std::ptr::write_bytes(self.0.at(chunk, 0), POISON, self.0.chunk_bytes() as usize) };
        Ok(())
    }

    fn wait(&mut self, _word: SignalWord, _generation: Generation) -> Result<(), BackingError> {
        Ok(())
    }

    fn signal(&mut self, _word: SignalWord, _generation: Generation) -> Result<(), BackingError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), BackingError> {
        Ok(())
    }
}

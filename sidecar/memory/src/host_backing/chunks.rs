//! The file of the chunks, this process's view of it, and their pages.
//!
//! The first fill of a chunk allocates its pages through file writes: the kernel takes a whole written page as it is,
//! while it zeroes a page that is first touched through a mapping. So the memory of a slab is allocated during the copy.
//! Only mappings allocate huge pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use sluice_policy::ids::ChunkId;

use super::page_flags::{BACKED, NONE, POPULATED, WRITTEN};
use crate::backing::BackingError;
use crate::mapping::MappingError;
use crate::mapping::reservation::Reservation;

/// Chunks whose size is a multiple of this use huge pages if the kernel allows them.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The file, and the pages of its chunks.
#[derive(Debug)]
pub(super) struct HostChunks {
    file: OwnedFd,
    view: Reservation,
    chunk_bytes: u64,
    page_flags: Vec<AtomicU8>,
}

impl HostChunks {
    /// Creates address space and a sparse file of `bytes` bytes.
    pub(super) fn new(
        chunk_bytes: u64,
        capacity_chunks: u32,
        bytes: u64,
    ) -> Result<HostChunks, BackingError> {
        let file = sealed_file(bytes)?;
        let view = Reservation::new(bytes as usize)?;
        let page_flags = (0..capacity_chunks).map(|_| AtomicU8::new(NONE)).collect();
        Ok(HostChunks { file, view, chunk_bytes, page_flags })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    fn offset(&self, chunk: ChunkId) -> u64 {
        u64::from(chunk.0) * self.chunk_bytes
    }

    pub(super) fn at(&self, chunk: ChunkId, offset: u64) -> *mut u8 {
        self.view.at((self.offset(chunk) + offset) as usize)
    }

    /// Maps consecutive chunks into the view.
    pub(super) fn map_view(&self, run: &[ChunkId]) -> Result<(), BackingError> {
        let (start, bytes) = (self.offset(run[0]), run.len() * self.chunk_bytes as usize);
        self.view.map(start as usize, bytes, self.file.as_fd(), start).map_err(refused)?;
        run.iter().for_each(|chunk| self.clear(*chunk, POPULATED));
        if self.uses_huge_pages() {
            // Only advice: without huge pages the chunk uses small ones.
            let _ = self.view.advise(start as usize, bytes, Advice::LinuxHugepage);
        }
        Ok(())
    }

    pub(super) fn unmap_view(&self, chunk: ChunkId) -> Result<(), BackingError> {
        Ok(self.view.unmap(self.offset(chunk) as usize, self.chunk_bytes as usize)?)
    }

    /// Allocates all pages of the chunk.
    pub(super) fn ensure_backed(&self, chunk: ChunkId) -> Result<(), BackingError> {
        if self.has(chunk, BACKED) {
            return Ok(());
        }
        if self.uses_huge_pages() {
            self.populate(chunk)?;
        }
        self.allocate(chunk)?;
        self.set(chunk, BACKED);
        Ok(())
    }

    /// Writes `bytes` through the file, which allocates lacking pages, if no fill has written the chunk yet. Returns
    /// false if the caller must write to the view instead.
    pub(super) fn write_via_file(
        &self,
        chunk: ChunkId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, BackingError> {
        if self.has(chunk, POPULATED) {
            return Ok(false);
        }
        if self.has(chunk, WRITTEN) || self.uses_huge_pages() {
            return self.populate(chunk).map(|()| false);
        }
        let mut written = 0;
        while written < bytes.len() {
            let at = self.offset(chunk) + offset + written as u64;
            match rustix::io::pwrite(&self.file, &bytes[written..], at) {
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(source) => return Err(refused(MappingError::Kernel { call: "pwrite", source })),
            }
        }
        Ok(true)
    }

    /// Frees the pages of a chunk.
    pub(super) fn punch_hole(&self, chunk: ChunkId) -> Result<(), BackingError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.file.as_fd(), flags, self.offset(chunk), self.chunk_bytes)
            .map_err(|source| BackingError::Kernel { call: "fallocate(PUNCH_HOLE)", source })?;
        self.page_flags[chunk.index()].store(NONE, Ordering::Release);
        Ok(())
    }

    /// Maps all pages into the view and allocates lacking ones, zeroed.
    pub(super) fn populate(&self, chunk: ChunkId) -> Result<(), BackingError> {
        let (start, bytes) = (self.offset(chunk) as usize, self.chunk_bytes as usize);
        self.view.advise(start, bytes, Advice::LinuxPopulateWrite).map_err(refused)?;
        self.set(chunk, POPULATED);
        Ok(())
    }

    pub(super) fn uses_huge_pages(&self) -> bool {
        self.chunk_bytes.is_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Whether the chunk has this flag.
    pub(super) fn has(&self, chunk: ChunkId, flag: u8) -> bool {
        self.page_flags.get(chunk.index()).is_some_and(|flags| flags.load(Ordering::Acquire) & flag != 0)
    }

    pub(super) fn set(&self, chunk: ChunkId, flag: u8) {
        self.page_flags[chunk.index()].fetch_or(flag, Ordering::AcqRel);
    }

    pub(super) fn clear(&self, chunk: ChunkId, flag: u8) {
        self.page_flags[chunk.index()].fetch_and(!flag, Ordering::AcqRel);
    }

    fn allocate(&self, chunk: ChunkId) -> Result<(), BackingError> {
        rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.offset(chunk), self.chunk_bytes)
            .map_err(|source| refused(MappingError::Kernel { call: "fallocate", source }))
    }
}

/// A populating page fault that finds no memory reports EFAULT.
fn refused(error: MappingError) -> BackingError {
    match error {
        MappingError::Kernel { source: Errno::NOMEM | Errno::NOSPC | Errno::FAULT, .. } => {
            BackingError::OutOfMemory
        }
        other => other.into(),
    }
}

/// Creates a memfd of constant size: no peer can truncate it, which would raise SIGBUS in this process.
fn sealed_file(bytes: u64) -> Result<OwnedFd, BackingError> {
    let kernel = |call| move |source| BackingError::Kernel { call, source };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sluice-chunks", flags).map_err(kernel("memfd_create"))?;
    rustix::fs::ftruncate(&file, bytes).map_err(kernel("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(kernel("fcntl(ADD_SEALS)"))?;
    Ok(file)
}

//! A pool of chunks in one memfd, read and written as a file, so that a worker's mappings see the same bytes.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::ensure;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

/// The chunks and which of them are free.
#[derive(Debug)]
pub(crate) struct Pool {
    file: File,
    chunk_bytes: u64,
    /// The lowest last, so that it is taken first.
    free: Vec<u32>,
}

impl Pool {
    pub(crate) fn new(chunk_bytes: u64, chunks: u32) -> anyhow::Result<Pool> {
        let file = memfd_create("sluice-pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, chunk_bytes * u64::from(chunks))?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Pool { file: file.into(), chunk_bytes, free: (0..chunks).rev().collect() })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the free chunks.
    pub(crate) fn free_chunks(&self) -> usize {
        self.free.len()
    }

    /// Returns the bytes of the file that have memory.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    pub(crate) fn take(&mut self, count: usize) -> anyhow::Result<Vec<u32>> {
        ensure!(count <= self.free.len(), "{count} chunks are needed, {} are free", self.free.len());
        Ok(self.free.split_off(self.free.len() - count).into_iter().rev().collect())
    }

    /// Frees chunks that no engine maps. A later user finds their old bytes, or NaN if they are poisoned.
    pub(crate) fn give_back(&mut self, chunks: &[u32], poison: bool) -> anyhow::Result<()> {
        for chunk in chunks {
            if poison {
                self.write(*chunk, &vec![0xff; self.chunk_bytes as usize])?;
            } else {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, hole, u64::from(*chunk) * self.chunk_bytes, self.chunk_bytes)?;
            }
        }
        self.free.extend(chunks.iter().rev());
        Ok(())
    }

    /// Returns the bytes of chunks, one after the other.
    pub(crate) fn read(&self, chunks: &[u32]) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; chunks.len() * self.chunk_bytes as usize];
        for (part, chunk) in bytes.chunks_mut(self.chunk_bytes as usize).zip(chunks) {
            self.file.read_exact_at(part, u64::from(*chunk) * self.chunk_bytes)?;
        }
        Ok(bytes)
    }

    /// Writes bytes from the front of chunks.
    pub(crate) fn write_all(&self, chunks: &[u32], bytes: &[u8]) -> anyhow::Result<()> {
        let parts = bytes.chunks(self.chunk_bytes as usize);
        chunks.iter().zip(parts).try_for_each(|(chunk, part)| self.write(*chunk, part))
    }

    fn write(&self, chunk: u32, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.file.write_all_at(bytes, u64::from(chunk) * self.chunk_bytes)?)
    }
}

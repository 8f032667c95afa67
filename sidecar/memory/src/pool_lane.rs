//! [`PoolLane`]: copies that keep their chunks until they are done.

use sluice_policy::ids::{ChunkId, Generation};

use crate::backing::{BackingError, Caching, CopyLane, SignalWord};
use crate::pool::{ChunkPin, ChunkPool, PoolError};

/// A lane of copies of one thread. Chunks that it copies cannot be released before [`PoolLane::finish`].
pub(crate) struct PoolLane<'a> {
    // Dropped first: it waits for the copies.
    copies: Box<dyn CopyLane>,
    pins: Vec<ChunkPin<'a>>,
    pool: &'a ChunkPool,
}

impl ChunkPool {
    /// Copies `bytes` into the chunk, starting at byte `offset`, and waits for it.
    pub fn write(&self, chunk: ChunkId, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        PoolLane::new(self).write(chunk, offset, bytes, Caching::Ordinary)
    }

    /// As [`ChunkPool::write`], but bypasses the cache: for chunks of a slab that is larger than the caches.
    pub fn write_streaming(&self, chunk: ChunkId, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        PoolLane::new(self).write(chunk, offset, bytes, Caching::Bypass)
    }

    /// Copies from the chunk, starting at byte `offset`, and waits for it.
    pub fn read(&self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        PoolLane::new(self).read(chunk, offset, bytes)
    }

    /// Copies `bytes` bytes between chunks, `(chunk, offset)` each, and waits for it.
    pub fn copy(&self, from: (ChunkId, u64), to: (ChunkId, u64), bytes: u64) -> Result<(), PoolError> {
        let mut lane = PoolLane::new(self);
        lane.copy(from, to, bytes)?;
        lane.finish()
    }

    /// Overwrites the chunk with [`crate::backing::POISON`], so that a reader of its old contents computes NaN.
    pub fn poison(&self, chunk: ChunkId) -> Result<(), PoolError> {
        let mut lane = PoolLane::new(self);
        lane.poison(chunk)?;
        lane.finish()
    }
}

impl<'a> PoolLane<'a> {
    /// Creates a lane without copies.
    pub(crate) fn new(pool: &'a ChunkPool) -> PoolLane<'a> {
        PoolLane { copies: pool.backing_lane(), pins: Vec::new(), pool }
    }

    /// Copies `bytes` into `chunks`, taken as one sequence, from byte `offset` of the first one on.
    ///
    /// # Safety
    /// `bytes` is not written before [`PoolLane::finish`] or the lane's drop.
    pub(crate) unsafe fn upload(
        &mut self,
        chunks: &[ChunkId],
        offset: u64,
        bytes: &[u8],
        caching: Caching,
    ) -> Result<(), PoolError> {
        self.pool.check_range(chunks.len(), offset, bytes.len() as u64)?;
        self.pin(chunks)?;
        // SAFETY: the caller keeps the bytes; the pins keep the chunks, which hold the range.
        let copied = unsafe { self.copies.upload(chunks, offset, bytes, caching) };
        self.check(chunks[0], copied)
    }

    /// Copies from byte `offset` of a chunk.
    ///
    /// # Safety
    /// `bytes` is not accessed before [`PoolLane::finish`] or the lane's drop.
    pub(crate) unsafe fn download(
        &mut self,
        chunk: ChunkId,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), PoolError> {
        self.pool.check_range(1, offset, bytes.len() as u64)?;
        self.pin(&[chunk])?;
        // SAFETY: as in `upload`.
        let copied = unsafe { self.copies.download(chunk, offset, bytes) };
        self.check(chunk, copied)
    }

    /// Copies into a chunk and waits for it.
    pub(crate) fn write(
        &mut self,
        chunk: ChunkId,
        offset: u64,
        bytes: &[u8],
        caching: Caching,
    ) -> Result<(), PoolError> {
        // SAFETY: this call has the bytes until `finish` returns.
        let copied = unsafe { self.upload(&[chunk], offset, bytes, caching) };
        let finished = self.finish();
        copied.and(finished)
    }

    /// Copies from a chunk and waits for it.
    pub(crate) fn read(&mut self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        // SAFETY: as in `write`.
        let copied = unsafe { self.download(chunk, offset, bytes) };
        let finished = self.finish();
        copied.and(finished)
    }

    /// Copies between chunks, `(chunk, offset)` each.
    pub(crate) fn copy(
        &mut self,
        from: (ChunkId, u64),
        to: (ChunkId, u64),
        bytes: u64,
    ) -> Result<(), PoolError> {
        self.pool.check_range(1, from.1, bytes)?;
        self.pool.check_range(1, to.1, bytes)?;
        self.pin(&[from.0, to.0])?;
        // SAFETY: the pins keep the chunks, which hold the ranges.
        let copied = unsafe { self.copies.copy(from, to, bytes) };
        self.check(from.0, copied)
    }

    /// Overwrites a chunk.
    pub(crate) fn poison(&mut self, chunk: ChunkId) -> Result<(), PoolError> {
        self.pin(&[chunk])?;
        // SAFETY: the pin keeps the chunk.
        let poisoned = unsafe { self.copies.poison(chunk) };
        self.check(chunk, poisoned)
    }

    /// Orders later copies after a word that the CPU has seen.
    pub(crate) fn wait(&mut self, word: SignalWord, generation: Generation) -> Result<(), PoolError> {
        self.copies.wait(word, generation).map_err(PoolError::Backing)
    }

    /// Sets a word after the copies so far.
    pub(crate) fn signal(&mut self, word: SignalWord, generation: Generation) -> Result<(), PoolError> {
        self.copies.signal(word, generation).map_err(PoolError::Backing)
    }

    /// Waits for all copies.
    pub(crate) fn finish(&mut self) -> Result<(), PoolError> {
        let finished = self.copies.finish();
        self.pins.clear();
        finished.map_err(PoolError::Backing)
    }

    fn pin(&mut self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        for chunk in chunks {
            self.pins.push(self.pool.pin(*chunk)?);
        }
        Ok(())
    }

    fn check(&self, chunk: ChunkId, result: Result<(), BackingError>) -> Result<(), PoolError> {
        result.map_err(|error| self.pool.error(chunk, error))
    }
}

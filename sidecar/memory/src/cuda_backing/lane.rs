//! [`CudaLane`]: copies on a stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::ids::{ChunkId, Generation};

use super::chunks::CudaChunks;
use super::words::ControlWords;
use crate::backing::{BackingError, Caching, CopyLane, POISON, SignalWord};
use crate::cuda::{Address, Context, Error, Event, Stream};

/// Bytes of a piece: what one transfer queues before a more urgent one may go ahead. On an H200 and an H100, copies of
/// 4 MiB reach 95 % of the link (docs/gpu-probe.md). 16 MiB keep a link of 55 GB/s busy for 0.3 ms, in which this thread
/// queues the next piece.
pub(super) const COPY_BYTES: usize = 16 << 20;
/// Pieces in flight, so that the link has work while this thread learns that one is done.
const IN_FLIGHT: usize = 2;
/// Time between two queries of an event: a fraction of the time of a piece.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// A stream, created with its first copy on the lane's thread.
pub(super) struct CudaLane {
    stream: Option<Stream>,
    /// The ends of pieces in flight.
    pieces: VecDeque<Event>,
    /// Bytes that were queued after the last of `pieces`; `None` if nothing was.
    queued: Option<u64>,
    chunks: Arc<CudaChunks>,
    words: Option<Arc<ControlWords>>,
    context: Context,
}

impl CudaLane {
    pub(super) fn new(context: Context, chunks: Arc<CudaChunks>, words: Option<Arc<ControlWords>>) -> Self {
        CudaLane { stream: None, pieces: VecDeque::new(), queued: None, chunks, words, context }
    }

    /// Queues work that moves `bytes`. If as many pieces as allowed are in flight, waits for the first of them.
    fn queue(
        &mut self,
        bytes: u64,
        work: impl FnOnce(&Stream) -> Result<(), Error>,
    ) -> Result<(), BackingError> {
        if self.stream.is_none() {
            self.context.enter()?;
            self.stream = Some(Stream::new(&self.context)?);
        }
        work(self.stream.as_ref().expect("it was just made"))?;
        let queued = self.queued.unwrap_or(0) + bytes;
        self.queued = Some(queued);
        if queued >= COPY_BYTES as u64 {
            self.end_piece()?;
            self.wait_for_pieces(IN_FLIGHT)?;
        }
        Ok(())
    }

    fn end_piece(&mut self) -> Result<(), BackingError> {
        if let (Some(stream), Some(_)) = (&self.stream, self.queued) {
            self.pieces.push_back(Event::after(stream)?);
            self.queued = None;
        }
        Ok(())
    }

    /// Waits until at most `left` pieces are in flight.
    fn wait_for_pieces(&mut self, left: usize) -> Result<(), BackingError> {
        while self.pieces.len() > left {
            while !self.pieces[0].is_reached()? {
                std::thread::sleep(POLL_INTERVAL);
            }
            self.pieces.pop_front();
        }
        Ok(())
    }

    fn address(&self, word: SignalWord) -> Option<Address> {
        self.words.as_ref().and_then(|words| words.address(word))
    }
}

impl CopyLane for CudaLane {
    unsafe fn upload(
        &mut self,
        chunks: &[ChunkId],
        offset: u64,
        bytes: &[u8],
        _caching: Caching,
    ) -> Result<(), BackingError> {
        let chunk_bytes = self.chunks.chunk_bytes();
        let (mut start, mut left) = (0, bytes);
        // Consecutive chunks have consecutive addresses, so one copy takes them together.
        for run in chunks.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)) {
            let run_bytes = run.len() as u64 * chunk_bytes;
            let skipped = offset.saturating_sub(start).min(run_bytes);
            let (part, rest) = left.split_at(left.len().min((run_bytes - skipped) as usize));
            if !part.is_empty() {
                let to = self.chunks.at(run[0], skipped);
                // SAFETY: the caller keeps the bytes until the copy is done.
                self.queue(part.len() as u64, |stream| unsafe { stream.upload_bytes(to, part) })?;
            }
            (start, left) = (start + run_bytes, rest);
        }
        Ok(())
    }

    unsafe fn download(&mut self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), BackingError> {
        let from = self.chunks.at(chunk, offset);
        // SAFETY: the caller keeps the bytes until the copy is done.
        self.queue(bytes.len() as u64, |stream| unsafe { stream.download_bytes(bytes, from) })
    }

    unsafe fn copy(
        &mut self,
        from: (ChunkId, u64),
        to: (ChunkId, u64),
        bytes: u64,
    ) -> Result<(), BackingError> {
        let (from, to) = (self.chunks.at(from.0, from.1), self.chunks.at(to.0, to.1));
        self.queue(bytes, |stream| stream.copy(to, from, bytes))
    }

    unsafe fn poison(&mut self, chunk: ChunkId) -> Result<(), BackingError> {
        let (at, bytes) = (self.chunks.at(chunk, 0), self.chunks.chunk_bytes());
        self.queue(bytes, |stream| stream.fill(at, u32::from_ne_bytes([POISON; 4]), bytes))
    }

    /// A queued wait cannot be taken back, and a transfer that waits would hold the link. So the CPU decides when an
    /// order starts, and the stream's wait, which passes at once, orders the copy after what the engine's device did.
    fn wait(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError> {
        let Some(address) = self.address(word) else { return Ok(()) };
        self.queue(0, |stream| stream.wait_value(address, generation.0))
    }

    fn signal(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError> {
        let Some(address) = self.address(word) else { return Ok(()) };
        self.queue(0, |stream| stream.write_value(address, generation.0))
    }

    fn finish(&mut self) -> Result<(), BackingError> {
        self.end_piece()?;
        self.wait_for_pieces(0)
    }
}

impl Drop for CudaLane {
    fn drop(&mut self) {
        // Copies use chunks and host memory that may go next. After a device fault none runs.
        let _ = self.finish();
    }
}

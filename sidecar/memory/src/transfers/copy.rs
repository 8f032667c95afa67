//! Runs one copy: chunk by chunk or block by block, paced and measured, and published after its last byte.

use std::time::Instant;

use sluice_policy::action::{Fetch, Fill, FillTarget};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::ChunkId;

use super::link::Transfer;
use super::{LaneContext, TransferOrder};
use crate::backing::{Caching, SignalWord};
use crate::host_weights::{HostWeightsError, Slab};
use crate::pool::PoolError;
use crate::pool_lane::PoolLane;
use crate::tier::TierCopy;

/// Minimum size of slabs that are copied past the cache: well above a core's own caches and its share of the
/// last level.
const STREAMING_BYTES: usize = 48 << 20;

impl LaneContext {
    pub(super) fn execute(
        &self,
        lane: &mut PoolLane<'_>,
        order: &TransferOrder,
        rank: CopyPriority,
    ) -> Outcome {
        if let Some(reader) = order.reader().filter(|_| !self.faults.current().skip_after_wait) {
            let (word, generation) = reader.word();
            if lane.wait(word, generation).is_err() {
                return Outcome::Failed(Failure::CopyFailed);
            }
        }
        match order {
            TransferOrder::Fill(fill) => self.fill(lane, fill, rank),
            TransferOrder::Fetch(fetch, copies) => self.fetch(lane, fetch, rank, copies),
            TransferOrder::WriteBack(copies) | TransferOrder::Spill(_, copies) => {
                self.tier.copy_out(lane, rank, copies)
            }
        }
    }

    fn fetch(
        &self,
        lane: &mut PoolLane<'_>,
        fetch: &Fetch,
        rank: CopyPriority,
        copies: &[TierCopy],
    ) -> Outcome {
        let outcome = self.tier.copy_in(lane, rank, copies);
        if matches!(outcome, Outcome::Done { .. }) {
            self.gate.publish_kv_ready(fetch.layer, fetch.generation);
        }
        outcome
    }

    fn fill(&self, lane: &mut PoolLane<'_>, fill: &Fill, rank: CopyPriority) -> Outcome {
        // A copy that allocates or maps pages is slower than the link and would make the link look slow.
        let captured = self.weights.slab(Slab::of(fill.target)).is_none();
        let measured = !captured && fill.chunks.iter().all(|chunk| self.pool.is_populated(*chunk));
        let begun = Instant::now();
        let mut transfer = self.link.begin(rank);
        let copied = self.copy_slab(lane, fill, &mut transfer);
        // Also after a failure: the copies that began still use the chunks.
        let finished = lane.finish().map_err(|_| Failure::CopyFailed);
        match copied.and_then(|bytes| finished.map(|()| bytes)) {
            Ok(bytes) => {
                let taken = begun.elapsed().saturating_sub(transfer.waited());
                let duration_ns = if measured { taken.as_nanos() as u64 } else { 0 };
                self.gate.publish_ready(fill.target.layer(), fill.generation);
                Outcome::Done { bytes, duration_ns }
            }
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// Queues the copies of a slab, and the signal after them.
    fn copy_slab(
        &self,
        lane: &mut PoolLane<'_>,
        fill: &Fill,
        transfer: &mut Transfer<'_>,
    ) -> Result<u64, Failure> {
        let Some(slab) = self.weights.slab(Slab::of(fill.target)) else {
            return self.capture_slab(lane, fill, transfer);
        };
        let fails = self.faults.should_fail_copy();
        // As many chunks at a time as the link takes as one piece.
        let chunk_bytes = self.pool.chunk_bytes() as usize;
        let together = self.pool.piece_bytes().map_or(1, |piece| (piece / chunk_bytes).max(1));
        let parts = slab.chunks(together * chunk_bytes);
        let last = parts.len().saturating_sub(1);
        let caching = if slab.len() >= STREAMING_BYTES { Caching::Bypass } else { Caching::Ordinary };
        for (at, (chunks, part)) in fill.chunks.chunks(together).zip(parts).enumerate() {
            self.faults.delay();
            let copied = transfer.transfer(part.len(), at == last, |piece| {
                // SAFETY: the weights are read-only and exist as long as `self`, and the caller finishes the lane.
                unsafe { lane.upload(chunks, piece.start as u64, &part[piece], caching) }
            });
            copied.map_err(|error| failure(&error))?;
            chunks.iter().for_each(|chunk| self.pool.mark_written(*chunk));
            if fails || self.lock().stopping {
                return Err(Failure::CopyFailed);
            }
        }
        if matches!(fill.target, FillTarget::Slot(..)) && self.faults.current().flip_slot_byte {
            flip_byte(lane, &fill.chunks).map_err(|_| Failure::CopyFailed)?;
        }
        self.signal_ready(lane, fill)?;
        Ok(slab.len() as u64)
    }

    /// Reads a slab that only its own chunks contain, because an engine has loaded it there, into the host weights.
    fn capture_slab(
        &self,
        lane: &mut PoolLane<'_>,
        fill: &Fill,
        transfer: &mut Transfer<'_>,
    ) -> Result<u64, Failure> {
        if matches!(fill.target, FillTarget::Slot(..)) {
            return Err(Failure::Refused);
        }
        let chunk_bytes = self.pool.chunk_bytes() as usize;
        let copied = self.weights.capture(Slab::of(fill.target), |slab| {
            let parts = slab.chunks_mut(chunk_bytes);
            let last = parts.len().saturating_sub(1);
            for (at, (chunk, part)) in fill.chunks.iter().zip(parts).enumerate() {
                self.faults.delay();
                transfer.transfer(part.len(), at == last, |piece| {
                    lane.read(*chunk, piece.start as u64, &mut part[piece])
                })?;
            }
            Ok::<_, CaptureError>(())
        });
        copied.map_err(|CaptureError| Failure::CopyFailed)?;
        self.signal_ready(lane, fill)?;
        Ok(self.weights.slab_bytes(Slab::of(fill.target)).unwrap_or(0))
    }

    fn signal_ready(&self, lane: &mut PoolLane<'_>, fill: &Fill) -> Result<(), Failure> {
        let word = SignalWord::Ready(fill.target.layer());
        lane.signal(word, fill.generation).map_err(|_| Failure::CopyFailed)
    }
}

/// A slab could not be read from its chunks, or not be made read-only. Both end the copy in the same way.
struct CaptureError;

impl From<PoolError> for CaptureError {
    fn from(_: PoolError) -> Self {
        CaptureError
    }
}

impl From<HostWeightsError> for CaptureError {
    fn from(_: HostWeightsError) -> Self {
        CaptureError
    }
}

fn flip_byte(lane: &mut PoolLane<'_>, chunks: &[ChunkId]) -> Result<(), PoolError> {
    let Some(&chunk) = chunks.first() else { return Ok(()) };
    let mut byte = [0];
    lane.finish()?;
    lane.read(chunk, 0, &mut byte)?;
    lane.write(chunk, 0, &[!byte[0]], Caching::Ordinary)
}

/// The copy allocates pages, so it may fail for lack of memory.
fn failure(error: &PoolError) -> Failure {
    match error {
        PoolError::OutOfMemory { .. } => Failure::OutOfMemory,
        _ => Failure::CopyFailed,
    }
}

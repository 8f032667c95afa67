//! Runs one copy: chunk by chunk or block by block, paced and measured, and published after its last byte.

use std::time::Instant;

use sluice_policy::action::{Fetch, Fill, FillTarget};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::ChunkId;

use super::link::Transfer;
use super::{LaneContext, TransferOrder};
use crate::host_weights::Slab;
use crate::pool::{ChunkPool, PoolError};
use crate::tier::TierCopy;

/// Minimum size of slabs that are copied past the cache: well above a core's own caches and its share of the
/// last level.
const STREAMING_BYTES: usize = 48 << 20;

impl LaneContext {
    pub(super) fn execute(&self, order: &TransferOrder, rank: CopyPriority) -> Outcome {
        match order {
            TransferOrder::Fill(fill) => self.fill(fill, rank),
            TransferOrder::Fetch(fetch, copies) => self.fetch(fetch, rank, copies),
            TransferOrder::WriteBack(copies) | TransferOrder::Spill(_, copies) => {
                self.tier.copy_out(&self.pool, rank, copies)
            }
        }
    }

    fn fetch(&self, fetch: &Fetch, rank: CopyPriority, copies: &[TierCopy]) -> Outcome {
        let outcome = self.tier.copy_in(&self.pool, rank, copies);
        if matches!(outcome, Outcome::Done { .. }) {
            self.gate.publish_kv_ready(fetch.layer, fetch.generation);
        }
        outcome
    }

    fn fill(&self, fill: &Fill, rank: CopyPriority) -> Outcome {
        // A copy that allocates or maps pages is slower than the link and would make the link look slow.
        let measured = fill.chunks.iter().all(|chunk| self.pool.is_populated(*chunk));
        let begun = Instant::now();
        let mut transfer = self.link.begin(rank);
        match self.copy_slab(fill, &mut transfer) {
            Ok(bytes) => {
                let taken = begun.elapsed().saturating_sub(transfer.waited());
                let duration_ns = if measured { taken.as_nanos() as u64 } else { 0 };
                self.gate.publish_ready(fill.target.layer(), fill.generation);
                Outcome::Done { bytes, duration_ns }
            }
            Err(failure) => Outcome::Failed(failure),
        }
    }

    fn copy_slab(&self, fill: &Fill, transfer: &mut Transfer<'_>) -> Result<u64, Failure> {
        let slab = self.weights.slab(Slab::of(fill.target)).ok_or(Failure::Refused)?;
        let fails = self.faults.should_fail_copy();
        let parts = slab.chunks(self.pool.chunk_bytes() as usize);
        let last = parts.len().saturating_sub(1);
        let write = if slab.len() >= STREAMING_BYTES { ChunkPool::write_streaming } else { ChunkPool::write };
        for (at, (chunk, part)) in fill.chunks.iter().zip(parts).enumerate() {
            self.faults.delay();
            let copied = transfer.transfer(part.len(), at == last, |piece| {
                write(&self.pool, *chunk, piece.start as u64, &part[piece])
            });
            copied.map_err(|error| failure(&error))?;
            self.pool.mark_written(*chunk);
            if fails || self.lock().stopping {
                return Err(Failure::CopyFailed);
            }
        }
        if matches!(fill.target, FillTarget::Slot(..)) && self.faults.current().flip_slot_byte {
            self.flip_byte(&fill.chunks).map_err(|_| Failure::CopyFailed)?;
        }
        Ok(slab.len() as u64)
    }

    fn flip_byte(&self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        let Some(&chunk) = chunks.first() else { return Ok(()) };
        let mut byte = [0];
        self.pool.read(chunk, 0, &mut byte)?;
        self.pool.write(chunk, 0, &[!byte[0]])
    }
}

/// The copy allocates pages, so it may fail for lack of memory.
fn failure(error: &PoolError) -> Failure {
    match error {
        PoolError::OutOfMemory { .. } => Failure::OutOfMemory,
        _ => Failure::CopyFailed,
    }
}

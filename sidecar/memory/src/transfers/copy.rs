//! One copy: chunk by chunk or block by block, paced, measured, and published after its last byte.

use std::time::Instant;

use sluice_policy::action::{Fetch, Fill, FillTarget};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::ChunkId;

use super::link::Transfer;
use super::{Order, Shared};
use crate::master::Slab;
use crate::pool::{Pool, PoolError};
use crate::tier::TierCopy;

/// Slabs of at least this size are copied past the cache: well above a core's own caches and its share of the last level.
const STREAMING_BYTES: usize = 48 << 20;

impl Shared {
    pub(super) fn carry_out(&self, order: &Order, rank: CopyPriority) -> Outcome {
        match order {
            Order::Fill(fill) => self.fill(fill, rank),
            Order::Fetch(fetch, copies) => self.fetch(fetch, rank, copies),
            Order::WriteBack(copies) | Order::Spill(_, copies) => {
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
        // What makes pages, or maps them, is slower than the link: it would be taken for a slow one.
        let measured = fill.chunks.iter().all(|chunk| self.pool.is_shown(*chunk));
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
        let slab = self.master.slab(Slab::of(fill.target)).ok_or(Failure::Refused)?;
        let fails = self.faults.copy_fails();
        let parts = slab.chunks(self.pool.chunk_bytes() as usize);
        let last = parts.len().saturating_sub(1);
        let write = if slab.len() >= STREAMING_BYTES { Pool::write_streaming } else { Pool::write };
        for (at, (chunk, part)) in fill.chunks.iter().zip(parts).enumerate() {
            self.faults.slow();
            let copied = transfer.carry(part.len(), at == last, |piece| {
                write(&self.pool, *chunk, piece.start as u64, &part[piece])
            });
            copied.map_err(|error| failure(&error))?;
            self.pool.filled(*chunk);
            if fails || self.lock().stopping {
                return Err(Failure::CopyFailed);
            }
        }
        if matches!(fill.target, FillTarget::Slot(..)) && self.faults.current().flip_slot_byte {
            self.flip(&fill.chunks).map_err(|_| Failure::CopyFailed)?;
        }
        Ok(slab.len() as u64)
    }

    fn flip(&self, chunks: &[ChunkId]) -> Result<(), PoolError> {
        let Some(&chunk) = chunks.first() else { return Ok(()) };
        let mut byte = [0];
        self.pool.read(chunk, 0, &mut byte)?;
        self.pool.write(chunk, 0, &[!byte[0]])
    }
}

/// Pages come with the copy: it may be for want of them that it failed.
fn failure(error: &PoolError) -> Failure {
    match error {
        PoolError::OutOfMemory { .. } => Failure::OutOfMemory,
        _ => Failure::CopyFailed,
    }
}

//! Creates chunks of the share again that no peer holds any more: at once if layers wait for them or the tenant is
//! idle, else when a step needs them, so that a waking tenant computes before all of its share exists.

use alloc::vec::Vec;

use super::MemoryManager;
use crate::action::{Action, Work};
use crate::event::{Failure, Outcome};
use crate::ids::ChunkId;
use crate::orders::pending::Pending;
use crate::reason::Reason;

/// Bytes that are created at least when a step needs some.
pub(super) const REGROW_PIECE_BYTES: u64 = 16 << 20;

impl MemoryManager {
    /// Chunks are to be created, and may be now.
    pub(super) fn is_recreating(&self) -> bool {
        self.loans.recreation.is_due(self.orders.boundaries())
    }

    /// They are created now, not when a step needs them.
    pub(super) fn recreates_at_once(&self) -> bool {
        let away = self.chunks.absent_layers() > 0 || self.weights.layout().alpha() > self.base.alpha();
        let idle = !self.loans.is_active() && self.kv.open_requests() == 0;
        self.loans.recreation.chunks() > 0 && (away || idle || !self.loans.outgoing.is_empty())
    }

    /// Creates at most `most` of them, as many as the ledger is likely to grant.
    pub(super) fn order_recreation(&mut self, most: u32, out: &mut Vec<Action>) {
        let chunks = self.fresh_chunks(self.loans.recreation.next_piece(most));
        self.orders.order(Work::Create(chunks.clone()), Reason::Wake, Pending::Recreate(chunks), out);
    }

    /// Chunks to create for the layer blocks that a step lacks; none if none can be created.
    pub(super) fn chunks_to_recreate(&self, missing_layer_blocks: u32) -> Option<u32> {
        if missing_layer_blocks == 0 || !self.is_recreating() || self.in_backoff() {
            return None;
        }
        let piece = (REGROW_PIECE_BYTES / self.geometry.chunk_bytes).min(u64::from(u32::MAX)) as u32;
        Some(missing_layer_blocks.div_ceil(self.sizes.layer_blocks_per_chunk).max(piece))
    }

    pub(super) fn on_recreated(&mut self, chunks: &[ChunkId], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            self.loans.recreation.remove(chunks.len() as u32);
            self.chunks.create(chunks);
            self.change.succeeded();
        } else if outcome == Outcome::Failed(Failure::OutOfMemory) {
            // Peers still hold the chunks.
            self.loans.recreation.on_refused(chunks.len() as u32, self.orders.boundaries());
        } else {
            self.on_transfer_failed();
        }
    }
}

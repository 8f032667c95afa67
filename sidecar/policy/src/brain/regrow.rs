//! Chunks of the share that no neighbour has any more are created anew.

use alloc::vec::Vec;

use super::Brain;
use crate::action::{Action, Work};
use crate::event::{Failure, Outcome};
use crate::ids::ChunkId;
use crate::pending::Pending;
use crate::reason::Reason;

/// Boundaries after which chunks that neighbours still had are tried again.
const REGROW_BOUNDARIES: u64 = 16;

impl Brain {
    /// A borrower is dead, and what it held is the device's: chunks that were lent may be created again.
    ///
    /// # Panics
    /// If fewer were lent.
    pub fn regain(&mut self, chunks: u32) {
        self.trade.lent -= chunks;
        self.trade.regrow += chunks;
    }

    pub(super) fn order_regrowth(&mut self, out: &mut Vec<Action>) {
        let chunks = self.fresh_chunks(self.trade.regrow.min(self.trade.regrow_piece));
        self.order(Work::Create(chunks.clone()), Reason::Wake, Pending::Regrow(chunks), out);
    }

    pub(super) fn regrown(&mut self, chunks: &[ChunkId], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            self.trade.regrow -= chunks.len() as u32;
            self.trade.regrow_refused &= self.trade.regrow > 0;
            chunks.iter().for_each(|chunk| self.ledger.create(*chunk));
            self.failed_changes = 0;
        } else if outcome == Outcome::Failed(Failure::OutOfMemory) {
            self.regrow_later(chunks.len() as u32);
        } else {
            self.trade_failed();
        }
    }

    /// Neighbours still have what is to be created: half as much is tried, and after the last chunk all of it a while later.
    fn regrow_later(&mut self, refused: u32) {
        self.trade.regrow_refused = true;
        self.trade.regrow_piece = refused / 2;
        if refused <= 1 {
            self.trade.regrow_piece = u32::MAX;
            self.trade.regrow_at = self.boundaries + REGROW_BOUNDARIES;
        }
    }
}

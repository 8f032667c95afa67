//! Transfers of chunks to and from peers, and layers that are restored after their memory was lent.
//!
//! Chunks are promised to a peer only when they are free: they are vacated first, between two steps, then released and
//! earmarked in one action. A loan is refused if it does not fit. A return is never refused: requests make space for
//! it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::MemoryManager;
use crate::action::{Action, Earmark, Work};
use crate::change::Transition;
use crate::event::{Failure, Outcome};
use crate::ids::ChunkId;
use crate::loans::{OutgoingTransfer, TransferKind, TransferResult};
use crate::orders::pending::Pending;
use crate::reason::Reason;

impl MemoryManager {
    pub(super) fn owes_peers(&self) -> bool {
        self.loans.outgoing.has_return()
    }

    /// Chunks of transfers of this kind, queued or under way.
    pub(super) fn earmarked_chunks(&self, claim: TransferKind) -> u32 {
        self.loans.outgoing.chunks_of(claim) + self.outgoing_chunks(|_, of| of == claim)
    }

    /// Chunks of transfers under way.
    pub(super) fn outgoing_chunks(&self, which: impl Fn(Earmark, TransferKind) -> bool) -> u32 {
        let chunks = |effect: &Pending| match effect {
            Pending::Lend(chunks, spare, earmark, claim) if which(*earmark, *claim) => {
                chunks.len() as u32 + spare
            }
            _ => 0,
        };
        self.orders.pending.iter().map(|(_, effect)| chunks(effect)).sum()
    }

    /// Chunks that neither exist nor are being created.
    pub(super) fn fresh_chunks(&self, count: u32) -> Vec<ChunkId> {
        let taken: BTreeSet<_> =
            self.orders.pending.iter().flat_map(|(_, effect)| effect.arriving()).copied().collect();
        let fresh = self.chunks.table().uncreated().filter(|chunk| !taken.contains(chunk));
        fresh.take(count as usize).collect()
    }

    /// Takes transfers, releases of share and restorations one action further.
    pub(super) fn settle_trade(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if self.in_backoff() {
            return;
        }
        self.release_uncreated_share();
        if self.is_recreating() && self.recreates_at_once() {
            return self.order_recreation(u32::MAX, out);
        }
        if self.share_to_release() > 0 && !self.owes_peers() {
            return self.release_share(out);
        }
        let vacant = self.free_after_eviction();
        if self.should_restore_layers() {
            self.refuse_loans_beyond(vacant);
        }
        let Some(transfer) = self.loans.outgoing.first() else {
            self.loans.set_forces_reclaim(false);
            return self.restore();
        };
        if vacant >= transfer.chunks {
            self.loans.outgoing.take_first();
            return self.order_lend(transfer, out);
        }
        match self.capacity_for(transfer.chunks - vacant, transfer.claim) {
            Some(target) => {
                self.change.decide(Some(Transition { target, reason: transfer.claim.reason() }));
            }
            None => self.refuse_loan(),
        }
    }

    /// Restored layers do not wait for a loan that must be vacated first: that can take until a step has run, and the
    /// step waits for the layers.
    fn refuse_loans_beyond(&mut self, vacant: u32) {
        let waits =
            |transfer: OutgoingTransfer| transfer.claim == TransferKind::Lend && transfer.chunks > vacant;
        while self.loans.outgoing.first().is_some_and(waits) {
            self.refuse_loan();
        }
    }

    fn order_lend(&mut self, transfer: OutgoingTransfer, out: &mut Vec<Action>) {
        let OutgoingTransfer { earmark, chunks, claim } = transfer;
        // Chunks that were never created go first: no other method creates them.
        let spare_chunks = self.spare_chunks().min(chunks);
        let earmarked = self.chunks.earmark(chunks - spare_chunks, earmark.peer);
        let work = Work::Lend { chunks: earmarked.clone(), spare_chunks, earmark };
        self.orders.order(work, claim.reason(), Pending::Lend(earmarked, spare_chunks, earmark, claim), out);
    }

    pub(super) fn on_lent(
        &mut self,
        earmarked: &[ChunkId],
        spare: u32,
        (earmark, claim): (Earmark, TransferKind),
        outcome: Outcome,
    ) {
        let chunks = earmarked.len() as u32 + spare;
        if let Outcome::Done { .. } = outcome {
            self.chunks.release(earmarked);
            match claim {
                TransferKind::Lend => self.loans.balance.on_lent(chunks),
                TransferKind::Return => self.loans.balance.on_repaid(chunks),
            }
            self.orders.count_moved(claim.reason(), chunks);
            self.change.succeeded();
            self.loans.outgoing.report(TransferResult::Granted { earmark, chunks, claim });
            return;
        }
        self.chunks.take_back(earmarked, earmark.peer);
        match (outcome, claim) {
            // The loan is refused; its borrower asks again later.
            (Outcome::Failed(Failure::Busy), TransferKind::Lend) => {}
            (Outcome::Failed(Failure::Busy), TransferKind::Return) => self.retry_later(),
            _ => self.on_transfer_failed(),
        }
        self.loans.outgoing.report(TransferResult::Refused { earmark, chunks, claim });
    }

    pub(super) fn on_accepted(
        &mut self,
        arrived: &[ChunkId],
        earmark: Earmark,
        claim: TransferKind,
        outcome: Outcome,
    ) {
        let chunks = arrived.len() as u32;
        let ended = match outcome {
            Outcome::Done { .. } => {
                match claim {
                    TransferKind::Lend => self.borrowed(chunks),
                    TransferKind::Return => self.loans.balance.on_lent_returned(chunks),
                }
                self.chunks.create(arrived);
                self.loans.demand.clear();
                TransferResult::Accepted { earmark, chunks }
            }
            Outcome::Failed(failure) => {
                if failure != Failure::Busy {
                    self.orders.count(Reason::BackendFailed);
                }
                match (failure, claim) {
                    (Failure::OutOfMemory, TransferKind::Lend) => self.borrowed(chunks),
                    (Failure::OutOfMemory, TransferKind::Return) => self.loans_mut().recover_share(chunks),
                    _ => {
                        return self.loans.outgoing.report(TransferResult::NotAccepted { earmark });
                    }
                }
                TransferResult::NotBacked { earmark, chunks }
            }
        };
        self.loans.outgoing.report(ended);
    }

    fn borrowed(&mut self, chunks: u32) {
        self.loans.balance.on_borrowed(chunks);
        self.orders.count_moved(Reason::Borrow, chunks);
    }

    pub(super) fn on_transfer_failed(&mut self) {
        self.orders.count(Reason::BackendFailed);
        self.retry_later();
    }

    /// No change is tried for some boundaries.
    fn retry_later(&mut self) {
        self.change.failed(self.orders.boundaries());
    }

    /// The first transfer does not fit. A loan is refused; for a return, a request must go.
    pub(super) fn refuse_loan(&mut self) {
        if !self.loans.outgoing.refuse_first_loan() && !self.loans.outgoing.is_empty() {
            self.loans.set_lacks_room(true);
        }
    }

    /// A change does not fit: a request makes space if the change must happen; a loan is refused.
    pub(super) fn on_no_room(&mut self, reason: Reason) {
        self.loans.set_lacks_room(self.loans.lacks_room() || reason.must_happen());
        if reason == Reason::Lend {
            self.refuse_loan();
        }
    }

    /// A transfer, a release of share or a recreation is due.
    pub(super) fn trading(&self) -> bool {
        !self.loans.outgoing.is_empty()
            || self.share_to_release() > 0
            || self.recreates_at_once()
            || self.should_restore_layers()
    }
}

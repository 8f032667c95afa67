//! Transfers of chunks to and from peers and the device, as actions and their ends.
//!
//! Chunks are promised to a peer only when they are free: they are vacated first, between two steps, then released and
//! earmarked in one action. A loan is refused if it does not fit. A return is never refused: requests make space for
//! it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Loans, OutgoingTransfer, TransferKind, TransferResult};
use crate::action::{Action, Earmark, Work};
use crate::chunks::Chunks;
use crate::event::{Failure, Outcome};
use crate::ids::ChunkId;
use crate::orders::Orders;
use crate::orders::pending::Pending;
use crate::reason::Reason;
use crate::transition::TransitionState;

/// The parts that a transfer changes.
#[derive(Debug)]
pub struct LoanTransfers<'a> {
    /// The loans.
    pub loans: &'a mut Loans,
    /// The chunks that pass.
    pub chunks: &'a mut Chunks,
    /// The orders.
    pub orders: &'a mut Orders,
    /// Counts failures of the backend.
    pub transitions: &'a mut TransitionState,
}

impl LoanTransfers<'_> {
    /// Chunks that neither exist nor are being created.
    fn fresh_chunks(&self, count: u32) -> Vec<ChunkId> {
        let taken: BTreeSet<_> = self.orders.pending().arriving().collect();
        let fresh = self.chunks.table().uncreated().filter(|chunk| !taken.contains(chunk));
        fresh.take(count as usize).collect()
    }

    /// Creates at most `most` chunks of the share again, as many as the ledger is likely to grant.
    pub fn recreate(&mut self, most: u32, out: &mut Vec<Action>) {
        let chunks = self.fresh_chunks(self.loans.recreation.next_piece(most));
        self.orders.order(Work::Create(chunks.clone()), Reason::Wake, Pending::Recreate(chunks), out);
    }

    /// They were created, or the device had none.
    pub fn on_recreated(&mut self, chunks: &[ChunkId], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            self.loans.recreation.remove(chunks.len() as u32);
            self.chunks.create(chunks);
            self.transitions.succeeded();
        } else if outcome == Outcome::Failed(Failure::OutOfMemory) {
            // Peers still hold the chunks.
            self.loans.recreation.on_refused(chunks.len() as u32, self.orders.boundaries());
        } else {
            self.transitions.on_backend_failed(self.orders);
        }
    }

    /// Releases free chunks with a part of the share, at most `most`. Returns false if no chunk is free.
    pub fn release_share(&mut self, most: u32, out: &mut Vec<Action>) -> bool {
        let chunks: Vec<_> = self.chunks.table().free().take(most as usize).collect();
        if chunks.is_empty() {
            return false;
        }
        let (work, effect) = (Work::Release(chunks.clone()), Pending::ReleaseShare(chunks));
        self.orders.order(work, Reason::ReleaseShare, effect, out);
        true
    }

    /// The chunks are the device's now, or still the tenant's. `assigned` is the share that was assigned last.
    pub fn on_share_released(&mut self, chunks: &[ChunkId], assigned: u32, outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            self.chunks.release(chunks);
            self.orders.count_moved(Reason::ReleaseShare, chunks.len() as u32);
            self.loans.balance.on_released(chunks.len() as u32, assigned);
            self.transitions.succeeded();
        } else {
            self.transitions.on_backend_failed(self.orders);
        }
    }

    /// Earmarks vacant chunks for a peer.
    pub fn send(&mut self, transfer: OutgoingTransfer, out: &mut Vec<Action>) {
        let OutgoingTransfer { earmark, chunks, kind } = transfer;
        // Chunks that were never created go first: no other method creates them.
        let spare_chunks = self.loans.spare_chunks(self.chunks.table().created()).min(chunks);
        let earmarked = self.chunks.earmark(chunks - spare_chunks, earmark.peer);
        let work = Work::Lend { chunks: earmarked.clone(), spare_chunks, earmark };
        self.orders.order(work, kind.reason(), Pending::Lend(earmarked, spare_chunks, earmark, kind), out);
    }

    /// The chunks are earmarked in the GPU ledger, or it refused.
    pub fn on_lent(
        &mut self,
        earmarked: &[ChunkId],
        spare: u32,
        (earmark, kind): (Earmark, TransferKind),
        outcome: Outcome,
    ) {
        let chunks = earmarked.len() as u32 + spare;
        if let Outcome::Done { .. } = outcome {
            self.chunks.release(earmarked);
            match kind {
                TransferKind::Lend => self.loans.balance.on_lent(chunks),
                TransferKind::Return => self.loans.balance.on_repaid(chunks),
            }
            self.orders.count_moved(kind.reason(), chunks);
            self.transitions.succeeded();
            self.loans.outgoing.report(TransferResult::Granted { earmark, chunks, kind });
            return;
        }
        self.chunks.take_back(earmarked, earmark.peer);
        match (outcome, kind) {
            // The loan is refused; its borrower asks again later.
            (Outcome::Failed(Failure::Busy), TransferKind::Lend) => {}
            (Outcome::Failed(Failure::Busy), TransferKind::Return) => {
                self.transitions.failed(self.orders.boundaries());
            }
            _ => self.transitions.on_backend_failed(self.orders),
        }
        self.loans.outgoing.report(TransferResult::Refused { earmark, chunks, kind });
    }

    /// Creates chunks that a peer has earmarked for this tenant, as a loan or as a return.
    ///
    /// # Panics
    /// If more is returned than was lent.
    pub fn accept(&mut self, earmark: Earmark, chunks: u32, kind: TransferKind, out: &mut Vec<Action>) {
        assert!(
            kind == TransferKind::Lend || chunks <= self.loans.balance.lent(),
            "a peer returns only chunks that were lent"
        );
        let chunks = self.fresh_chunks(chunks);
        let work = Work::Accept { chunks: chunks.clone(), earmark };
        let reason = if kind == TransferKind::Lend { Reason::Borrow } else { Reason::Wake };
        self.orders.order(work, reason, Pending::Accept(chunks, earmark, kind), out);
    }

    /// The peer's chunks are here, or their bytes without memory, or the earmark was void.
    pub fn on_accepted(
        &mut self,
        arrived: &[ChunkId],
        earmark: Earmark,
        kind: TransferKind,
        outcome: Outcome,
    ) {
        let chunks = arrived.len() as u32;
        let ended = match outcome {
            Outcome::Done { .. } => {
                match kind {
                    TransferKind::Lend => self.on_borrowed(chunks),
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
                match (failure, kind) {
                    (Failure::OutOfMemory, TransferKind::Lend) => self.on_borrowed(chunks),
                    (Failure::OutOfMemory, TransferKind::Return) => self.loans.recover_share(chunks),
                    _ => return self.loans.outgoing.report(TransferResult::NotAccepted { earmark }),
                }
                TransferResult::NotBacked { earmark, chunks }
            }
        };
        self.loans.outgoing.report(ended);
    }

    fn on_borrowed(&mut self, chunks: u32) {
        self.loans.balance.on_borrowed(chunks);
        self.orders.count_moved(Reason::Borrow, chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::peers::Peer;
    use crate::peers::loans::Nonce;
    use crate::revert::Hysteresis;

    const DONE: Outcome = Outcome::Done { bytes: 0, duration_ns: 1 };
    const PEER: Earmark = Earmark { peer: Peer { index: 1, instance: 1 }, nonce: Nonce(1) };

    /// The parts of a tenant with a share of 10 chunks, of which 6 exist and are free.
    struct Parts {
        loans: Loans,
        chunks: Chunks,
        orders: Orders,
        transitions: TransitionState,
        out: Vec<Action>,
    }

    impl Parts {
        fn new() -> Parts {
            let geometry = Geometry {
                chunk_bytes: 64,
                capacity_chunks: 16,
                global_bytes: 128,
                slab_bytes: alloc::vec![128; 4],
                layer_block_bytes: 16,
                activation: crate::geometry::ActivationCost::default(),
                staging_chunks: 0,
            };
            let mut chunks = Chunks::new(&geometry, 8);
            chunks.create(&ids(0..6));
            Parts {
                loans: Loans::new(10, Hysteresis::new(1, 0)),
                chunks,
                orders: Orders::new(false),
                transitions: TransitionState::new(Hysteresis::new(1, 0)),
                out: Vec::new(),
            }
        }

        fn transfers(&mut self) -> (LoanTransfers<'_>, &mut Vec<Action>) {
            let Parts { loans, chunks, orders, transitions, out } = self;
            (LoanTransfers { loans, chunks, orders, transitions }, out)
        }

        fn send(&mut self, chunks: u32, kind: TransferKind) -> Option<Work> {
            let (mut transfers, out) = self.transfers();
            transfers.send(OutgoingTransfer { earmark: PEER, chunks, kind }, out);
            self.out.pop().map(|action| action.work)
        }

        fn in_backoff(&self) -> bool {
            self.transitions.in_backoff(self.orders.boundaries())
        }
    }

    fn ids(chunks: core::ops::Range<u32>) -> Vec<ChunkId> {
        chunks.map(ChunkId).collect()
    }

    #[test]
    fn chunks_that_do_not_exist_are_lent_first() {
        let mut parts = Parts::new();
        let work = parts.send(6, TransferKind::Lend);
        assert_eq!(work, Some(Work::Lend { chunks: ids(0..2), spare_chunks: 4, earmark: PEER }));
        parts.transfers().0.on_lent(&ids(0..2), 4, (PEER, TransferKind::Lend), DONE);
        let counts =
            (parts.loans.balance.lent(), parts.loans.balance.budget(), parts.chunks.table().created());
        assert_eq!(counts, (6, 4, 4));
        let kind = TransferKind::Lend;
        assert_eq!(parts.loans.take_results(), [TransferResult::Granted { earmark: PEER, chunks: 6, kind }]);
    }

    #[test]
    fn a_refused_transfer_frees_its_chunks_and_a_return_is_tried_later() {
        for (kind, waits) in [(TransferKind::Lend, false), (TransferKind::Return, true)] {
            let mut parts = Parts::new();
            parts.send(6, kind);
            assert_eq!(parts.chunks.free_count(), 4);
            parts.transfers().0.on_lent(&ids(0..2), 4, (PEER, kind), Outcome::Failed(Failure::Busy));
            assert_eq!(
                (parts.chunks.free_count(), parts.loans.balance.lent(), parts.in_backoff()),
                (6, 0, waits)
            );
            let refused = TransferResult::Refused { earmark: PEER, chunks: 6, kind };
            assert_eq!(parts.loans.take_results(), [refused]);
        }
    }

    #[test]
    fn accepted_chunks_are_borrowed_even_without_memory_for_them() {
        let full = Outcome::Failed(Failure::OutOfMemory);
        for (outcome, created, borrowed) in
            [(DONE, 8, 2), (full, 6, 2), (Outcome::Failed(Failure::Busy), 6, 0)]
        {
            let mut parts = Parts::new();
            let (mut transfers, out) = parts.transfers();
            transfers.accept(PEER, 2, TransferKind::Lend, out);
            transfers.on_accepted(&ids(6..8), PEER, TransferKind::Lend, outcome);
            assert_eq!((parts.chunks.table().created(), parts.loans.balance.borrowed()), (created, borrowed));
        }
    }

    #[test]
    fn a_return_without_memory_is_created_again_later() {
        let mut parts = Parts::new();
        parts.loans.balance.on_lent(2);
        let full = Outcome::Failed(Failure::OutOfMemory);
        parts.transfers().0.on_accepted(&ids(6..8), PEER, TransferKind::Return, full);
        assert_eq!((parts.loans.balance.lent(), parts.loans.chunks_to_recreate()), (0, 2));
    }

    #[test]
    fn chunks_under_way_are_not_ordered_twice() {
        let mut parts = Parts::new();
        parts.loans.recreate_share(8, 6);
        let (mut transfers, out) = parts.transfers();
        transfers.accept(PEER, 2, TransferKind::Lend, out);
        transfers.recreate(u32::MAX, out);
        assert_eq!(parts.out.pop().map(|action| action.work), Some(Work::Create(ids(8..10))));
        parts.transfers().0.on_recreated(&ids(8..10), Outcome::Failed(Failure::OutOfMemory));
        assert_eq!(parts.loans.recreation.held_by_peers(), 2, "the ledger refused");
        assert!(!parts.in_backoff(), "that is no failure of the backend");
    }

    #[test]
    fn a_released_share_shrinks_by_the_chunks_that_the_device_took() {
        let mut parts = Parts::new();
        let (mut transfers, out) = parts.transfers();
        assert!(transfers.release_share(4, out));
        transfers.on_share_released(&ids(0..4), 5, Outcome::Failed(Failure::Busy));
        assert!(parts.in_backoff());
        parts.transfers().0.on_share_released(&ids(0..4), 5, DONE);
        assert_eq!(
            (parts.loans.balance.share(), parts.chunks.free_count(), parts.in_backoff()),
            (6, 2, false)
        );
    }
}

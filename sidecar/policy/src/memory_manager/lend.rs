//! Memory that goes to neighbours and comes from them, and coming back after weight layers were lent (DESIGN 8).
//!
//! Nobody is promised a chunk before it is free: what is to be given is vacated first, between two steps, then released
//! and earmarked in one action. A loan is refused when there is no room for it. A debt is not: requests make room.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{MemoryManager, SleepState};
use crate::action::{Action, Earmark, Work};
use crate::change::Transition;
use crate::event::{Failure, Outcome};
use crate::ids::ChunkId;
use crate::loans::{OutgoingTransfer, TransferKind, TransferResult};
use crate::pending::Pending;
use crate::reason::Reason;

impl MemoryManager {
    /// Chunks that may exist now: the share, and what was borrowed, without what was lent.
    pub fn budget_chunks(&self) -> u32 {
        self.loans.balance.budget()
    }

    /// Chunks that the tenant may hold without asking a neighbour. While a share that fell is being given up, more than it is to
    /// be: [`MemoryManager::releasing_chunks`].
    pub fn share_chunks(&self) -> u32 {
        self.loans.balance.share()
    }

    /// Chunks that belong to neighbours and are here.
    pub fn borrowed_chunks(&self) -> u32 {
        self.loans.balance.borrowed()
    }

    /// Chunks of the share that neighbours have.
    pub fn lent_chunks(&self) -> u32 {
        self.loans.balance.lent()
    }

    /// Chunks that come to exist or go at this moment: the backend may be ahead of the memory manager by as many.
    pub fn moving_chunks(&self) -> u32 {
        let arriving = self.pending.iter().map(|(_, effect)| effect.arriving().len() as u32).sum::<u32>();
        let released = self.pending.iter().map(|(_, effect)| match effect {
            Pending::Release(chunks) | Pending::ReleaseShare(chunks) => chunks.len() as u32,
            _ => 0,
        });
        arriving + released.sum::<u32>() + self.outgoing_chunks(|_, _| true)
    }

    /// Chunks of the share that are wanted here and that neighbours still hold.
    pub fn expected_chunks(&self) -> u32 {
        let regrow = self.loans.recreation.held_by_peers();
        self.missing_floor_chunks().unwrap_or(0) + regrow
    }

    /// Chunks that the tenant can never lend while it is not hibernated.
    pub fn floor_chunks(&self) -> u32 {
        self.sizes.floor(&self.params)
    }

    /// Chunks that it does not lend now.
    pub fn unlent_floor_chunks(&self) -> u32 {
        if self.sleep == SleepState::Asleep { 0 } else { self.floor_chunks() }
    }

    /// Layers without memory: lent, and not back.
    pub fn absent_layers(&self) -> u16 {
        self.chunks.absent_layers()
    }

    /// No step can run before [`MemoryManager::boundary`] has brought lent layers back, or, after hibernation, the embeddings and
    /// the head are there again.
    pub fn lacks_weights(&self) -> bool {
        self.loaded
            && (self.sleep != SleepState::Awake
                || self.absent_layers() > 0
                || !self.weights.is_global_loaded())
    }

    /// The tenant holds the turn, or has work where there are no turns. While it is not active it may lend weight layers;
    /// while it is, layers that were lent come back.
    ///
    /// What was lent is to be revoked first: until [`MemoryManager::set_awaits_loans`] says how that goes, layers wait for it.
    pub fn set_active(&mut self, active: bool) {
        self.loans.set_active(active);
    }

    /// What [`MemoryManager::set_active`] said last.
    pub fn active(&self) -> bool {
        self.loans.is_active()
    }

    /// Layers that were lent wait (`true`) while the loans are being revoked, and come back into what there is (`false`).
    pub fn set_awaits_loans(&mut self, patient: bool) {
        self.loans.set_awaits_loans(patient);
    }

    /// Layers that were lent wait for their loans.
    pub fn awaits_loans(&self) -> bool {
        self.loans.awaits_loans()
    }

    /// What must go has no room at a boundary: the scheduler pauses or preempts a request and comes to the boundary again.
    pub fn debt_is_blocked(&self) -> bool {
        self.loans.is_blocked()
    }

    /// It is stuck, and nobody is left to make room.
    pub fn force_reclaim(&mut self) {
        self.loans.set_forces_reclaim(true);
    }

    /// A debt has not been paid: no step begins before it is, unless the backend keeps failing.
    pub fn has_debt(&self) -> bool {
        self.share_to_release() > 0 || self.owes_peers()
    }

    fn owes_peers(&self) -> bool {
        self.loans.outgoing.has_return()
    }

    /// Transfers that have ended since the last call.
    pub fn take_transfer_results(&mut self) -> Vec<TransferResult> {
        self.loans.outgoing.take_results()
    }

    /// Chunks are to go to a neighbour. How it ended is told by [`MemoryManager::take_transfer_results`].
    ///
    /// # Panics
    /// If a loan would take the tenant below its floor, or a debt is more than was borrowed: whoever orders it has looked.
    pub fn queue_transfer(&mut self, earmark: Earmark, chunks: u32, claim: TransferKind) {
        let promised = self.earmarked_chunks(claim) + chunks;
        match claim {
            TransferKind::Lend => {
                let left = (self.loans.balance.share() - self.loans.balance.lent()).checked_sub(promised);
                assert!(
                    left.is_some_and(|left| left >= self.unlent_floor_chunks()),
                    "a tenant keeps its floor"
                );
            }
            TransferKind::Return => assert!(promised <= self.loans.balance.borrowed(), "a debt was borrowed"),
        }
        self.loans.outgoing.push(OutgoingTransfer { earmark, chunks, claim });
    }

    /// Chunks that are to go under this claim, or are going.
    pub(super) fn earmarked_chunks(&self, claim: TransferKind) -> u32 {
        self.loans.outgoing.chunks_of(claim) + self.outgoing_chunks(|_, of| of == claim)
    }

    /// Chunks that are going.
    pub(super) fn outgoing_chunks(&self, which: impl Fn(Earmark, TransferKind) -> bool) -> u32 {
        let chunks = |effect: &Pending| match effect {
            Pending::Lend(chunks, spare, earmark, claim) if which(*earmark, *claim) => {
                chunks.len() as u32 + spare
            }
            _ => 0,
        };
        self.pending.iter().map(|(_, effect)| chunks(effect)).sum()
    }

    /// Whoever asked for this loan no longer waits for it. False if it is no longer to be stopped: its end will be told.
    pub fn cancel_transfer(&mut self, earmark: Earmark) -> bool {
        self.loans.outgoing.cancel_loan(earmark)
    }

    /// A neighbour has earmarked chunks for this tenant, as a loan or to pay a debt: they come to exist here.
    ///
    /// # Panics
    /// If a debt is paid that nobody has.
    pub fn accept(&mut self, earmark: Earmark, chunks: u32, claim: TransferKind, out: &mut Vec<Action>) {
        assert!(
            claim == TransferKind::Lend || chunks <= self.loans.balance.lent(),
            "what comes back was lent"
        );
        let chunks = self.fresh_chunks(chunks);
        let work = Work::Accept { chunks: chunks.clone(), earmark };
        let reason = if claim == TransferKind::Lend { Reason::Borrow } else { Reason::Wake };
        self.order(work, reason, Pending::Accept(chunks, earmark, claim), out);
    }

    /// Chunks that neither exist nor are about to.
    pub(super) fn fresh_chunks(&self, count: u32) -> Vec<ChunkId> {
        let taken: BTreeSet<_> =
            self.pending.iter().flat_map(|(_, effect)| effect.arriving()).copied().collect();
        let fresh = self.chunks.table().uncreated().filter(|chunk| !taken.contains(chunk));
        fresh.take(count as usize).collect()
    }

    /// Takes what is to go, or what is to come back, one action further.
    pub(super) fn settle_trade(&mut self, out: &mut Vec<Action>) {
        self.loans.set_blocked(false);
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
        if self.wake_layout() {
            self.refuse_loans_beyond(vacant);
        }
        let Some(parting) = self.loans.outgoing.first() else {
            self.loans.set_forces_reclaim(false);
            return self.restore();
        };
        if vacant >= parting.chunks {
            self.loans.outgoing.take_first();
            return self.order_lend(parting, out);
        }
        match self.capacity_for(parting.chunks - vacant, parting.claim) {
            Some(target) => {
                self.change.decide(Some(Transition { target, reason: parting.claim.reason() }));
            }
            None => self.refuse_loan(),
        }
    }

    /// Layers that come back do not wait for a loan that has to be vacated first: that could take until a step has run, which
    /// waits for the layers.
    fn refuse_loans_beyond(&mut self, vacant: u32) {
        let waits =
            |parting: OutgoingTransfer| parting.claim == TransferKind::Lend && parting.chunks > vacant;
        while self.loans.outgoing.first().is_some_and(waits) {
            self.refuse_loan();
        }
    }

    fn order_lend(&mut self, parting: OutgoingTransfer, out: &mut Vec<Action>) {
        let OutgoingTransfer { earmark, chunks, claim } = parting;
        // What was never made goes first: nothing else would make it.
        let spare_chunks = self.spare_chunks().min(chunks);
        let going = self.chunks.earmark(chunks - spare_chunks, earmark.peer);
        let work = Work::Lend { chunks: going.clone(), spare_chunks, earmark };
        self.order(work, claim.reason(), Pending::Lend(going, spare_chunks, earmark, claim), out);
    }

    pub(super) fn lent(
        &mut self,
        going: &[ChunkId],
        spare: u32,
        (earmark, claim): (Earmark, TransferKind),
        outcome: Outcome,
    ) {
        let chunks = going.len() as u32 + spare;
        if let Outcome::Done { .. } = outcome {
            self.chunks.release(going);
            match claim {
                TransferKind::Lend => self.loans.balance.on_lent(chunks),
                TransferKind::Return => self.loans.balance.on_repaid(chunks),
            }
            self.count_moved(claim.reason(), chunks);
            self.change.succeeded();
            self.loans.outgoing.report(TransferResult::Granted { earmark, chunks, claim });
            return;
        }
        self.chunks.take_back(going, earmark.peer);
        match (outcome, claim) {
            // The loan is refused, and its borrower asks again later.
            (Outcome::Failed(Failure::Busy), TransferKind::Lend) => {}
            (Outcome::Failed(Failure::Busy), TransferKind::Return) => self.retry_later(),
            _ => self.on_transfer_failed(),
        }
        self.loans.outgoing.report(TransferResult::Refused { earmark, chunks, claim });
    }

    pub(super) fn accepted(
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
                self.clear_borrow_request();
                TransferResult::Accepted { earmark, chunks }
            }
            Outcome::Failed(failure) => {
                if failure != Failure::Busy {
                    self.count(Reason::BackendFailed);
                }
                match (failure, claim) {
                    (Failure::OutOfMemory, TransferKind::Lend) => self.borrowed(chunks),
                    (Failure::OutOfMemory, TransferKind::Return) => self.recover_share(chunks),
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
        self.count_moved(Reason::Borrow, chunks);
    }

    pub(super) fn on_transfer_failed(&mut self) {
        self.count(Reason::BackendFailed);
        self.retry_later();
    }

    /// No change is tried for some boundaries.
    fn retry_later(&mut self) {
        self.change.failed(self.counters.boundaries());
    }

    /// The first transfer has no room. A loan is refused; for a debt, a request must go.
    pub(super) fn refuse_loan(&mut self) {
        if !self.loans.outgoing.refuse_first_loan() && !self.loans.outgoing.is_empty() {
            self.loans.set_blocked(true);
        }
    }

    /// A change found no room: a request makes it if it must happen, a loan is refused.
    pub(super) fn has_no_room(&mut self, reason: Reason) {
        self.loans.set_blocked(self.loans.is_blocked() || reason.must_happen());
        if reason == Reason::Lend {
            self.refuse_loan();
        }
    }

    /// Something is on its way to or from neighbours, or has to come back.
    pub(super) fn trading(&self) -> bool {
        !self.loans.outgoing.is_empty()
            || self.share_to_release() > 0
            || self.recreates_at_once()
            || self.wake_layout()
    }
}

//! Transfers to peers that wait for memory, and results that the negotiator has not read yet.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::transfer::{OutgoingTransfer, TransferKind, TransferResult};
use crate::action::Earmark;

/// Transfers in the order in which they are made. Returns come before loans: steps wait for a return, and a loan may
/// have to wait for steps.
#[derive(Clone, Debug, Default)]
pub struct OutgoingTransfers {
    queue: VecDeque<OutgoingTransfer>,
    results: Vec<TransferResult>,
}

impl OutgoingTransfers {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn first(&self) -> Option<OutgoingTransfer> {
        self.queue.front().copied()
    }

    /// Queues a transfer: a return before all loans.
    pub fn push(&mut self, transfer: OutgoingTransfer) {
        let loan = |other: &OutgoingTransfer| other.kind == TransferKind::Lend;
        let before = self.queue.iter().position(|other| loan(other) && !loan(&transfer));
        self.queue.insert(before.unwrap_or(self.queue.len()), transfer);
    }

    /// Takes the first transfer to make it.
    pub fn take_first(&mut self) -> Option<OutgoingTransfer> {
        self.queue.pop_front()
    }

    /// Refuses the first transfer if it is a loan; returns whether it was one.
    pub fn refuse_first_loan(&mut self) -> bool {
        let refused = self.queue.pop_front_if(|first| first.kind == TransferKind::Lend);
        refused.is_some_and(|loan| self.refuse(loan))
    }

    /// Refuses the last transfer if it is a loan; returns whether it was one.
    pub fn refuse_last_loan(&mut self) -> bool {
        let refused = self.queue.pop_back_if(|last| last.kind == TransferKind::Lend);
        refused.is_some_and(|loan| self.refuse(loan))
    }

    fn refuse(&mut self, loan: OutgoingTransfer) -> bool {
        let OutgoingTransfer { earmark, chunks, kind } = loan;
        self.results.push(TransferResult::Refused { earmark, chunks, kind });
        true
    }

    /// Removes the loan of this name without a result; returns whether it was queued.
    pub fn cancel_loan(&mut self, earmark: Earmark) -> bool {
        let before = self.queue.len();
        self.queue.retain(|other| other.earmark != earmark || other.kind == TransferKind::Return);
        self.queue.len() < before
    }

    /// A return is queued.
    pub fn has_return(&self) -> bool {
        self.queue.iter().any(|other| other.kind == TransferKind::Return)
    }

    /// Chunks of the queued transfers of this kind.
    pub fn chunks_of(&self, kind: TransferKind) -> u32 {
        self.queue.iter().filter(|other| other.kind == kind).map(|other| other.chunks).sum()
    }

    /// Chunks of the queued returns of this name.
    pub fn return_chunks(&self, earmark: Earmark) -> u32 {
        let same = |other: &&OutgoingTransfer| other.earmark == earmark && other.kind == TransferKind::Return;
        self.queue.iter().filter(same).map(|other| other.chunks).sum()
    }

    pub fn report(&mut self, result: TransferResult) {
        self.results.push(result);
    }

    /// Every queued transfer, in order.
    pub fn queued(&self) -> impl Iterator<Item = &OutgoingTransfer> {
        self.queue.iter()
    }

    /// Results that were not taken.
    pub fn results(&self) -> &[TransferResult] {
        &self.results
    }

    /// Results since the last call.
    pub fn take_results(&mut self) -> Vec<TransferResult> {
        core::mem::take(&mut self.results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peer;
    use crate::peers::loans::Nonce;

    fn transfer(nonce: u64, kind: TransferKind) -> OutgoingTransfer {
        let peer = Peer { index: nonce as u32, instance: nonce };
        OutgoingTransfer { earmark: Earmark { peer, nonce: Nonce(nonce) }, chunks: nonce as u32, kind }
    }

    fn queue() -> OutgoingTransfers {
        let mut queue = OutgoingTransfers::default();
        for (nonce, kind) in [(1, TransferKind::Lend), (2, TransferKind::Return), (3, TransferKind::Lend)] {
            queue.push(transfer(nonce, kind));
        }
        queue
    }

    #[test]
    fn return_comes_before_loans() {
        let mut queue = queue();
        let order: Vec<_> = core::iter::from_fn(|| queue.take_first()).map(|one| one.chunks).collect();
        assert_eq!(order, [2, 1, 3]);
    }

    #[test]
    fn only_loans_are_refused_and_each_refusal_is_reported() {
        let mut queue = queue();
        assert!(!queue.refuse_first_loan(), "a return is not refused");
        assert!(queue.refuse_last_loan() && queue.refuse_last_loan() && !queue.refuse_last_loan());
        assert_eq!(queue.take_results().len(), 2);
        assert!(queue.has_return() && queue.take_results().is_empty());
    }

    #[test]
    fn chunks_are_counted_by_kind_and_name() {
        let mut queue = queue();
        assert_eq!((queue.chunks_of(TransferKind::Lend), queue.chunks_of(TransferKind::Return)), (4, 2));
        let debt = transfer(2, TransferKind::Return).earmark;
        assert_eq!((queue.return_chunks(debt), queue.cancel_loan(debt)), (2, false));
        assert!(queue.cancel_loan(transfer(1, TransferKind::Lend).earmark));
        assert_eq!(queue.len(), 2);
    }
}

//! Decides the next action for peers and for the share at a boundary.

use super::{Loans, OutgoingTransfer, TransferKind};

/// Facts about a boundary, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundaryFacts {
    /// Chunks of the share are created again now, not when a step needs them.
    pub recreates: bool,
    /// Chunks of the share that can be released now.
    pub share_to_release: u32,
    /// Free chunks, and those that may be created and were not.
    pub vacant: u32,
    /// Absent layers are to be restored.
    pub restores_layers: bool,
}

/// The next action for peers and for the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanStep {
    /// Creates chunks of the share again.
    Recreate,
    /// Releases these chunks of the share.
    ReleaseShare(u32),
    /// Refuses the first loan, and asks again: restored layers do not wait for a loan that must be vacated first. That
    /// can take until a step has run, and the step waits for the layers.
    RefuseFirst,
    /// Makes the first transfer: its chunks are vacant.
    Send(OutgoingTransfer),
    /// Frees more chunks for the first transfer.
    Free {
        /// Chunks that are missing.
        missing: u32,
        /// Loan or return.
        kind: TransferKind,
    },
    /// Nothing is due for a peer: absent layers are restored.
    RestoreLayers,
}

impl Loans {
    /// Decides the next action.
    pub fn next_step(&self, facts: BoundaryFacts) -> LoanStep {
        if facts.recreates {
            return LoanStep::Recreate;
        }
        if facts.share_to_release > 0 && !self.outgoing.has_return() {
            return LoanStep::ReleaseShare(facts.share_to_release);
        }
        let Some(transfer) = self.outgoing.first() else { return LoanStep::RestoreLayers };
        match transfer.chunks.checked_sub(facts.vacant) {
            None | Some(0) => LoanStep::Send(transfer),
            Some(_) if facts.restores_layers && transfer.kind == TransferKind::Lend => LoanStep::RefuseFirst,
            Some(missing) => LoanStep::Free { missing, kind: transfer.kind },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Earmark;
    use crate::loans::TransferResult;
    use crate::peers::Peer;
    use crate::peers::loans::Nonce;
    use crate::revert::Hysteresis;

    const IDLE: BoundaryFacts =
        BoundaryFacts { recreates: false, share_to_release: 0, vacant: 4, restores_layers: false };

    fn transfer(chunks: u32, kind: TransferKind) -> OutgoingTransfer {
        let peer = Peer { index: 1, instance: 1 };
        OutgoingTransfer { earmark: Earmark { peer, nonce: Nonce(chunks.into()) }, chunks, kind }
    }

    fn loans(transfers: &[OutgoingTransfer]) -> Loans {
        let mut loans = Loans::new(40, Hysteresis::new(1, 0));
        transfers.iter().for_each(|transfer| loans.outgoing.push(*transfer));
        loans
    }

    #[test]
    fn chunks_are_recreated_and_a_share_released_before_a_loan() {
        let loan = transfer(3, TransferKind::Lend);
        let mut loans = loans(&[loan]);
        let due = BoundaryFacts { share_to_release: 5, ..IDLE };
        assert_eq!(loans.next_step(BoundaryFacts { recreates: true, ..due }), LoanStep::Recreate);
        assert_eq!(loans.next_step(due), LoanStep::ReleaseShare(5));
        assert_eq!(loans.next_step(IDLE), LoanStep::Send(loan));
        assert_eq!(loans.next_step(IDLE), LoanStep::Send(loan), "deciding changes nothing");
        loans.on_send();
        assert_eq!(loans.next_step(IDLE), LoanStep::RestoreLayers, "the queue is empty");
    }

    #[test]
    fn a_return_comes_before_the_release_of_a_share() {
        let debt = transfer(6, TransferKind::Return);
        let facts = BoundaryFacts { share_to_release: 5, ..IDLE };
        let step = loans(&[debt]).next_step(facts);
        assert_eq!(step, LoanStep::Free { missing: 2, kind: TransferKind::Return });
    }

    #[test]
    fn layers_do_not_wait_for_a_loan_that_must_be_vacated() {
        let mut loans = loans(&[transfer(6, TransferKind::Lend), transfer(4, TransferKind::Lend)]);
        let restores = BoundaryFacts { restores_layers: true, ..IDLE };
        assert_eq!(loans.next_step(restores), LoanStep::RefuseFirst);
        loans.refuse_first();
        assert_eq!(loans.next_step(restores), LoanStep::Send(transfer(4, TransferKind::Lend)));
        assert!(matches!(loans.outgoing.take_results()[..], [TransferResult::Refused { chunks: 6, .. }]));
    }
}

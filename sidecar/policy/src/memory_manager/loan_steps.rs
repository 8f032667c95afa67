//! Carries out the next action for peers and for the share ([`crate::loans`]): it collects the values that the loans need
//! of other parts, and gives the answer to the part that it concerns.

use alloc::vec::Vec;

use super::MemoryManager;
use crate::action::Action;
use crate::change::Transition;
use crate::loans::next_step::LoanStep;
use crate::reason::Reason;

impl MemoryManager {
    /// Takes transfers, releases of share and restorations one action further.
    pub(super) fn take_loan_step(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if self.in_backoff() {
            return;
        }
        self.release_uncreated_share();
        let facts = self.loans().boundary_facts();
        let mut step = self.loans.next_step(facts);
        while step == LoanStep::RefuseFirst {
            self.loans.refuse_first();
            step = self.loans.next_step(facts);
        }
        match step {
            LoanStep::RefuseFirst => {}
            LoanStep::Recreate => self.transfers().recreate(u32::MAX, out),
            LoanStep::ReleaseShare(chunks) => self.release_share(chunks, out),
            LoanStep::Send(transfer) => {
                self.loans.on_send();
                self.transfers().send(transfer, out);
            }
            LoanStep::Free { missing, kind } => {
                let loans = self.loans();
                match loans.reclaimable().for_transfer(missing, kind, loans.smaller_layouts()) {
                    Some(target) => self.change.decide(Some(Transition { target, reason: kind.reason() })),
                    None => self.loans.refuse_first(),
                }
            }
            LoanStep::RestoreLayers => {
                self.loans.on_nothing_queued();
                self.restore_layers();
            }
        }
    }

    /// Takes the release of a share one action further.
    fn release_share(&mut self, chunks: u32, out: &mut Vec<Action>) {
        if !self.transfers().release_share(chunks, out) {
            let loans = self.loans();
            let target = loans.reclaimable().for_smaller_share(chunks, loans.smaller_layouts());
            self.change.decide(target.map(|target| Transition { target, reason: Reason::ReleaseShare }));
        }
    }

    /// Releases chunks of the share that do not exist.
    pub(super) fn release_uncreated_share(&mut self) {
        let (created, limits) = (self.chunks.table().created(), self.loans().limits());
        self.loans.release_uncreated(created, self.orders.pending(), limits);
    }

    /// Layers are absent, and no loan is waited for: restores them.
    fn restore_layers(&mut self) {
        let loans = self.loans();
        if !loans.should_restore_layers() || loans.awaits_loans() {
            return;
        }
        match loans.restoration() {
            Some(target) => self.change.decide(Some(Transition { target, reason: Reason::Wake })),
            None => self.loans.set_lacks_room(true),
        }
    }
}

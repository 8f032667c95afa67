//! Carries out the next action for peers and for the share ([`crate::loans`]): it collects the values that the loans need
//! of other parts, and gives the answer to the part that it concerns.

use alloc::vec::Vec;

use super::{MemoryManager, SleepState};
use crate::action::Action;
use crate::change::Transition;
use crate::loans::next_step::{BoundaryFacts, LoanStep};
use crate::loans::reclaim::{Reclaimable, SmallerLayout};
use crate::loans::share::ShareLimits;
use crate::reason::Reason;
use crate::step_model::Layout;

impl MemoryManager {
    /// Takes transfers, releases of share and restorations one action further.
    pub(super) fn take_loan_step(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if self.in_backoff() {
            return;
        }
        self.release_uncreated_share();
        let facts = self.boundary_facts();
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
                match self.reclaimable().for_transfer(missing, kind, self.smaller_layouts()) {
                    Some(target) => self.change.decide(Some(Transition { target, reason: kind.reason() })),
                    None => self.loans.refuse_first(),
                }
            }
            LoanStep::RestoreLayers => {
                self.loans.on_nothing_queued();
                self.restore();
            }
        }
    }

    fn boundary_facts(&self) -> BoundaryFacts {
        BoundaryFacts {
            recreates: self.loans.may_recreate(self.orders.boundaries()) && self.recreates_at_once(),
            share_to_release: self.share_to_release(),
            vacant: self.vacant_chunks(),
            restores_layers: self.should_restore_layers(),
        }
    }

    /// A transfer, a release of share or a recreation is due.
    pub(super) fn has_loan_step(&self) -> bool {
        self.loans.has_outgoing()
            || self.share_to_release() > 0
            || self.recreates_at_once()
            || self.should_restore_layers()
    }

    /// Takes the release of a share one action further.
    fn release_share(&mut self, chunks: u32, out: &mut Vec<Action>) {
        if !self.transfers().release_share(chunks, out) {
            let target = self.reclaimable().for_smaller_share(chunks, self.smaller_layouts());
            self.change.decide(target.map(|target| Transition { target, reason: Reason::ReleaseShare }));
        }
    }

    /// Releases chunks of the share that do not exist.
    pub(super) fn release_uncreated_share(&mut self) {
        let (created, limits) = (self.chunks.table().created(), self.share_limits());
        self.loans.release_uncreated(created, &self.orders.pending, limits);
    }

    /// What the share and the floor are now.
    pub(super) fn share_limits(&self) -> ShareLimits {
        let is_asleep = self.sleep.state() == SleepState::Asleep;
        ShareLimits { assigned: self.sizes.share, floor: if is_asleep { 0 } else { self.sizes.floor } }
    }

    /// Chunks of the share that can be released now.
    pub(super) fn share_to_release(&self) -> u32 {
        self.loans.share_to_release(&self.orders.pending, self.share_limits())
    }

    /// Free chunks, and those that may be created and were not.
    pub(super) fn vacant_chunks(&self) -> u32 {
        self.chunks.free_count() + self.loans.spare_chunks(self.chunks.table().created())
    }

    /// Chunks of the share are created now, not when a step needs them.
    fn recreates_at_once(&self) -> bool {
        let away = self.chunks.absent_layers() > 0 || self.weights.layout().alpha() > self.base.alpha();
        self.loans.recreates_at_once(away, self.kv.requests().count() > 0)
    }

    /// What can be freed for a transfer or a smaller share.
    fn reclaimable(&self) -> Reclaimable {
        let weights = self.chunks.weights_held();
        Reclaimable {
            idle_kv: self.kv.idle_chunks_above(self.sizes.kv_guaranteed),
            kv: self.kv.chunk_pool().above(self.sizes.kv_guaranteed),
            layers: self.lendable_layers(),
            weights,
            least: self.sizes.least_layout(weights).map(|layout| self.smaller(layout, false)),
            activation: self.activation_space(),
            at_any_cost: self.loans.forces_reclaim(),
        }
    }

    /// Layouts that take fewer and fewer chunks. Allowed are those that the share demands in any case, and those within
    /// the policy's stall.
    fn smaller_layouts(&self) -> impl Iterator<Item = SmallerLayout> + Clone + '_ {
        let known = self.step_stats.compute_known();
        let allowance_ns = self.cost().allowance_ns();
        self.larger_remaps().map(move |layout| {
            let allowed = !self.loans.is_active()
                || layout.alpha() <= self.base.alpha()
                || known && self.cost().stall_ns(&layout) <= allowance_ns;
            self.smaller(layout, allowed)
        })
    }

    fn smaller(&self, layout: Layout, allowed: bool) -> SmallerLayout {
        SmallerLayout { chunks: self.sizes.weights(&layout), layout, allowed }
    }
}

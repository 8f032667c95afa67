//! Carries out what is due for peers and for the share ([`crate::loans`]): it collects what the loans need of other
//! parts, and gives the answer to the part that it concerns.

use alloc::vec::Vec;

use super::{MemoryManager, SleepState};
use crate::action::Action;
use crate::change::Transition;
use crate::ids::LayerId;
use crate::loans::lendable_layers::{LendableLayers, layers_that_hide};
use crate::loans::next_step::{BoundaryFacts, LoanStep};
use crate::loans::reclaim::{ActivationSpace, Reclaimable, SmallerLayout};
use crate::loans::share::ShareLimits;
use crate::loans::transfers::LoanTransfers;
use crate::reason::Reason;
use crate::step_model::Layout;

impl MemoryManager {
    /// The parts that a transfer changes.
    pub(super) fn transfers(&mut self) -> LoanTransfers<'_> {
        LoanTransfers {
            loans: &mut self.loans,
            chunks: &mut self.chunks,
            orders: &mut self.orders,
            change: &mut self.change,
        }
    }

    /// Takes transfers, releases of share and restorations one action further.
    pub(super) fn take_loan_step(&mut self, out: &mut Vec<Action>) {
        self.loans.set_lacks_room(false);
        if self.in_backoff() {
            return;
        }
        self.release_uncreated_share();
        let facts = self.boundary_facts();
        match self.loans.next_step(facts) {
            LoanStep::Recreate => self.transfers().recreate(u32::MAX, out),
            LoanStep::ReleaseShare(chunks) => self.release_share(chunks, out),
            LoanStep::Send(transfer) => self.transfers().send(transfer, out),
            LoanStep::Free { missing, kind } => {
                match self.reclaimable().for_transfer(missing, kind, self.smaller_layouts()) {
                    Some(target) => self.change.decide(Some(Transition { target, reason: kind.reason() })),
                    None => self.loans.refuse_first(),
                }
            }
            LoanStep::RestoreLayers => self.restore(),
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

    /// The activation space. While chunks are lent, it keeps those of the smallest step: they may have been lent under
    /// a policy whose floor counts on these.
    pub(super) fn activation_space(&self) -> ActivationSpace {
        let is_lender = self.loans.lent() > 0;
        ActivationSpace {
            held: self.chunks.activation_chunks(),
            kept: if is_lender { self.sizes.activation_least } else { self.sizes.activation_min },
            converts: self.sizes.activation_kept.is_some(),
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

    /// Layers that an inactive tenant can lend, last one first. With moving and absent layers at most the cap.
    pub(super) fn lendable_layers(&self) -> LendableLayers {
        let idle = !self.loans.is_active() && self.loaded;
        let max_moving = self.sizes.movable_m.filter(|_| idle).unwrap_or(0);
        let layers = (0..self.sizes.layers).rev().map(LayerId);
        let own = layers.filter(|layer| !self.chunks.ownership().layers[layer.index()].is_empty());
        let own = own.map(|layer| (layer, self.sizes.slabs[layer.index()]));
        LendableLayers::new(
            own,
            usize::from(max_moving).saturating_sub(self.displaced_layers()),
            self.hidden_layers(),
        )
    }

    /// Layers without memory of their own.
    pub(super) fn displaced_layers(&self) -> usize {
        self.weights.layout().moving.len() + usize::from(self.chunks.absent_layers())
    }

    /// Layers whose copies hide when the tenant wakes; all of them, if no request waits.
    fn hidden_layers(&self) -> usize {
        if !self.loans.is_busy() {
            return usize::MAX;
        }
        let transfer_ns = self.step_stats.transfer_ns().into_iter().max().unwrap_or(0);
        layers_that_hide(self.step_stats.token_compute_ns(), transfer_ns, self.chunks.absent_layers())
    }
}

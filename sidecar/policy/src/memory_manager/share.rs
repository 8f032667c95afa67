//! The share and the remap cap change while the tenant runs.
//!
//! A larger share counts at once. A smaller one is a debt to the GPU: steps wait for it, and the excess goes back to
//! the device in pieces, cheapest first. The tenant keeps its floor; if peers hold chunks that it needs for the floor,
//! these loans are revoked first.
//!
//! | released, in this order | cost |
//! |---|---|
//! | chunks that were never created, free chunks | none |
//! | unused cache | later requests that would have hit it |
//! | idle activation space (eLLM) | none |
//! | own layers: those that the smaller share takes in any case, and more while their copies hide | the allowed stall |
//! | KV in use | requests are recomputed or paused, in the order of the policy |
//! | own layers, whatever their stall | a longer step |

use alloc::vec::Vec;

use super::{MemoryManager, SleepState};
use crate::action::{Action, Work};
use crate::change::{Transition, TransitionTarget};
use crate::event::Outcome;
use crate::ids::ChunkId;
use crate::loans::TransferKind;
use crate::orders::pending::Pending;
use crate::reason::Reason;
use crate::step_model::Layout;

impl MemoryManager {
    pub(super) fn over_lent(&self) -> u32 {
        self.retained_chunks().saturating_sub(self.sizes.share)
    }

    /// Chunks of the share that are lent or promised, and the floor.
    fn retained_chunks(&self) -> u32 {
        self.loans.balance.lent()
            + self.earmarked_chunks(TransferKind::Lend)
            + self.loans().unlent_floor_chunks()
    }

    /// Chunks of the share that can be released now.
    pub(super) fn share_to_release(&self) -> u32 {
        // Every step asks: count what is retained only if something is due.
        match self.loans().releasing_chunks() {
            0 => 0,
            due => due.min(self.loans.balance.share().saturating_sub(self.retained_chunks())),
        }
    }

    /// Releases what costs nothing: refuses loans that were not made, and drops chunks that were never created.
    pub(super) fn release_uncreated_share(&mut self) {
        if self.loans().releasing_chunks() == 0 {
            return;
        }
        while self.over_lent() > 0 && self.loans.outgoing.refuse_last_loan() {}
        let spare = self.spare_chunks();
        let released = self.share_to_release().min(spare + self.loans.recreation.chunks());
        self.loans.recreation.remove(released.saturating_sub(spare));
        self.loans.balance.release_uncreated(released);
    }

    /// Takes the release of a share one action further.
    pub(super) fn release_share(&mut self, out: &mut Vec<Action>) {
        let free = self.chunks.free_count().min(self.share_to_release());
        if free > 0 {
            let chunks: Vec<_> = self.chunks.table().free().take(free as usize).collect();
            return self.orders.order(
                Work::Release(chunks.clone()),
                Reason::ReleaseShare,
                Pending::ReleaseShare(chunks),
                out,
            );
        }
        let target = self.releasable_chunks(self.share_to_release());
        self.change.decide(target.map(|target| Transition { target, reason: Reason::ReleaseShare }));
    }

    pub(super) fn on_share_released(&mut self, chunks: &[ChunkId], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            self.chunks.release(chunks);
            self.orders.count_moved(Reason::ReleaseShare, chunks.len() as u32);
            self.loans.balance.on_released(chunks.len() as u32, self.sizes.share);
            self.change.succeeded();
        } else {
            self.on_transfer_failed();
        }
    }

    /// The cheapest change that frees some of `missing` chunks.
    fn releasable_chunks(&self, missing: u32) -> Option<TransitionTarget> {
        let idle = self.idle_kv_chunks().min(missing);
        if idle > 0 {
            return Some(TransitionTarget::Vacate { kv_chunks: idle, layers: 0 });
        }
        if let Some(target) = self.sizes.activation_kept.and_then(|_| self.idle_activations(missing)) {
            return Some(target);
        }
        if let Some(layout) = self.smaller_layout_by(missing, self.loans.forces_reclaim()) {
            return Some(TransitionTarget::Layout(layout));
        }
        let kv_chunks = self.kv_chunks_above_guarantee().min(missing);
        if kv_chunks > 0 {
            return Some(TransitionTarget::Vacate { kv_chunks, layers: 0 });
        }
        let layout = self.smaller_layout_by(missing, true).or_else(|| self.min_layout());
        layout.map(TransitionTarget::Layout).or_else(|| self.idle_activations(missing))
    }

    /// Activation chunks that are kept in any case: those that the floor counts on. While chunks are lent, those of the
    /// smallest step: they may have been lent under a policy whose floor counts on these.
    pub(super) fn min_activations(&self) -> u32 {
        if self.loans.balance.lent() > 0 { self.sizes.activation_least } else { self.sizes.activation_min }
    }

    /// Fewer activations, as many as are missing.
    pub(super) fn idle_activations(&self, missing: u32) -> Option<TransitionTarget> {
        let held = self.chunks.activation_chunks();
        let min = self.min_activations().max(held.saturating_sub(missing));
        // Chunks beyond the address range of KV become free.
        (min < held).then_some(TransitionTarget::Activation(min))
    }

    /// A layout that takes fewer chunks than now: the first that frees `missing`, else the last that is allowed.
    /// Allowed are layouts that the share demands in any case, those within the policy's stall, and, at any cost, all.
    fn smaller_layout_by(&self, missing: u32, at_any_cost: bool) -> Option<Layout> {
        let held = self.chunks.weights_held();
        let known = self.step_stats.compute_known();
        let allowance_ns = self.cost().allowance_ns();
        let hides = |layout: &Layout| known && self.cost().stall_ns(layout) <= allowance_ns;
        let allowed = |layout: &Layout| {
            at_any_cost || !self.loans.is_active() || layout.alpha() <= self.base.alpha() || hides(layout)
        };
        let mut found = None;
        for layout in self.larger_remaps().take_while(allowed) {
            let freed = held.saturating_sub(self.sizes.weights(&layout));
            found = if freed > 0 { Some(layout) } else { found };
            if freed >= missing {
                break;
            }
        }
        found
    }

    /// The layout that the floor counts on.
    pub(super) fn min_layout(&self) -> Option<Layout> {
        let moving = self.sizes.movable_m.filter(|moving| *moving >= 2)?;
        Some(self.sizes.evenly(moving))
            .filter(|layout| self.sizes.weights(layout) < self.chunks.weights_held())
    }

    /// The chunks of a larger share are created as steps need them, like those of an exited borrower.
    pub(super) fn grow(&mut self) {
        if self.loans.balance.take_growth() && self.sleep.state() == SleepState::Awake {
            let existing = self.chunks.table().created() + self.loans.recreation.chunks();
            self.loans
                .recreation
                .add(self.loans.balance.budget().min(self.sizes.useful()).saturating_sub(existing));
        }
    }

    /// If more layers move than the cap allows: the layout within the cap, if it fits without cost to a request.
    pub(super) fn layout_below_cap(&self) -> Option<Layout> {
        let moving = self.weights.layout().moving.len();
        if moving <= usize::from(self.sizes.cap_m) || !self.change.may_retry(self.orders.boundaries()) {
            return None;
        }
        let max_moving = self.sizes.cap_m.saturating_sub(1);
        let layout = self.choose_layout(&Layout::resident(), max_moving, u64::MAX).layout;
        let room = self.chunks.weights_held() + self.chunks.free_count() + self.idle_kv_chunks();
        (self.sizes.weights(&layout) <= room).then_some(layout)
    }
}

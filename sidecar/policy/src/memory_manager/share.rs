//! The share changes while the tenant runs, and with it how much may be remapped: its GPU was dealt out anew.
//!
//! More of a share counts at once. Less of it is a debt to nobody in particular: steps wait for it, and what is too much goes
//! back to the device piece by piece, cheapest first. The tenant keeps its floor; where neighbours have what it would need
//! for that, they are told to give it back first.
//!
//! | what goes, in this order | whom it costs |
//! |---|---|
//! | what was never made, what is free | nobody |
//! | KV that nobody uses | whoever would have found it in the cache |
//! | idle activation space (eLLM) | nobody |
//! | own layers: as many as the smaller share takes in any case, more as long as their way back hides | streams, the stall that the policy allows |
//! | KV in use | the youngest requests: they are computed again; by loss, who loses least, perhaps paused |
//! | own layers, whatever their way back costs | streams |

use alloc::vec::Vec;

use super::sizes::Sizes;
use super::{MemoryManager, SleepState};
use crate::action::{Action, Work};
use crate::change::{Transition, TransitionTarget};
use crate::config_error::ConfigError;
use crate::event::Outcome;
use crate::geometry::Geometry;
use crate::ids::ChunkId;
use crate::loans::TransferKind;
use crate::params::{Bounds, Params};
use crate::pending::Pending;
use crate::reason::Reason;
use crate::step_model::Layout;

/// Whether a tenant with these parameters can be served.
///
/// # Errors
/// Why not.
pub fn fits(params: &Params, geometry: &Geometry) -> Result<(), ConfigError> {
    Sizes::new(params, geometry).map(drop)
}

/// Chunks that a tenant with these parameters never lends, whatever its share.
///
/// # Errors
/// Why it cannot be served even with the whole GPU.
pub fn floor(params: &Params, geometry: &Geometry) -> Result<u32, ConfigError> {
    let params = Params { share_chunks: u32::MAX, ..params.clone() };
    Ok(Sizes::new(&params, geometry)?.floor(&params))
}

impl MemoryManager {
    /// Another share and another cap are in force. A larger share may be held at once, a smaller one is reached as memory goes
    /// ([`MemoryManager::share_chunks`]). Layers that are away beyond a lower cap come back as memory allows.
    ///
    /// # Errors
    /// When what the tenant may never lend does not fit: nothing has changed then.
    pub fn set_bounds(&mut self, bounds: Bounds) -> Result<(), ConfigError> {
        let Bounds { share_chunks, remap_cap_permille } = bounds;
        let params = Params { share_chunks, remap_cap_permille, ..self.params.clone() };
        let sizes = Sizes::new(&params, &self.geometry)?;
        (self.params, self.sizes) = (params, sizes);
        self.loans.balance.assign(self.sizes.share);
        self.change.forget_declined();
        if self.loaded && self.forced.is_none() {
            self.base = self.start_layout(self.sizes.useful()).unwrap_or_else(|| self.base.clone());
        }
        Ok(())
    }

    /// The share and the cap that were named last.
    pub fn bounds(&self) -> Bounds {
        let Params { share_chunks, remap_cap_permille, .. } = self.params;
        Bounds { share_chunks, remap_cap_permille }
    }

    /// Chunks of the share that are still to go.
    pub fn releasing_chunks(&self) -> u32 {
        self.loans.balance.excess(self.sizes.share)
    }

    /// Chunks that neighbours have and that would be missing for the floor within the share that was named last.
    pub fn over_lent_chunks(&self) -> u32 {
        if self.loans.balance.lent() == 0 { 0 } else { self.over_lent().min(self.loans.balance.lent()) }
    }

    fn over_lent(&self) -> u32 {
        self.retained_chunks().saturating_sub(self.sizes.share)
    }

    /// Of the share: what neighbours have or were promised, and what the tenant does not lend.
    fn retained_chunks(&self) -> u32 {
        self.loans.balance.lent() + self.earmarked_chunks(TransferKind::Lend) + self.unlent_floor_chunks()
    }

    /// Chunks of the share that can go now.
    pub(super) fn share_to_release(&self) -> u32 {
        // Every step asks: what is kept is counted only where something is to go.
        match self.releasing_chunks() {
            0 => 0,
            due => due.min(self.loans.balance.share().saturating_sub(self.retained_chunks())),
        }
    }

    /// What costs nothing of a share that fell: loans that were not made are refused, and chunks that were not made are not.
    pub(super) fn release_uncreated_share(&mut self) {
        if self.releasing_chunks() == 0 {
            return;
        }
        while self.over_lent() > 0 && self.loans.outgoing.refuse_last_loan() {}
        let spare = self.spare_chunks();
        let going = self.share_to_release().min(spare + self.loans.recreation.chunks());
        self.loans.recreation.remove(going.saturating_sub(spare));
        self.loans.balance.release_uncreated(going);
    }

    /// Takes a share that fell one action further.
    pub(super) fn release_share(&mut self, out: &mut Vec<Action>) {
        let free = self.chunks.free_count().min(self.share_to_release());
        if free > 0 {
            let chunks: Vec<_> = self.chunks.table().free().take(free as usize).collect();
            return self.order(
                Work::Release(chunks.clone()),
                Reason::Cede,
                Pending::ReleaseShare(chunks),
                out,
            );
        }
        let target = self.releasable_chunks(self.share_to_release());
        self.change.decide(target.map(|target| Transition { target, reason: Reason::Cede }));
    }

    pub(super) fn on_share_released(&mut self, chunks: &[ChunkId], outcome: Outcome) {
        if let Outcome::Done { .. } = outcome {
            self.chunks.release(chunks);
            self.count_moved(Reason::Cede, chunks.len() as u32);
            self.loans.balance.on_released(chunks.len() as u32, self.sizes.share);
            self.change.succeeded();
        } else {
            self.on_transfer_failed();
        }
    }

    /// What has to change so that some of `missing` chunks become free, the cheapest first.
    fn releasable_chunks(&self, missing: u32) -> Option<TransitionTarget> {
        let idle = self.idle_frames().min(missing);
        if idle > 0 {
            return Some(TransitionTarget::Vacate { frames: idle, layers: 0 });
        }
        let inflates = self.params.policy().reclaims_activations();
        if let Some(target) = self.idle_activations(missing).filter(|_| inflates) {
            return Some(target);
        }
        if let Some(layout) = self.narrower_by(missing, self.loans.forces_reclaim()) {
            return Some(TransitionTarget::Layout(layout));
        }
        let frames = self.frames_above_guarantee().min(missing);
        if frames > 0 {
            return Some(TransitionTarget::Vacate { frames, layers: 0 });
        }
        let layout = self.narrower_by(missing, true).or_else(|| self.min_layout());
        layout.map(TransitionTarget::Layout).or_else(|| self.idle_activations(missing))
    }

    /// Chunks of activations that are kept in any case: those that the floor counts on. While something is lent they are those of
    /// the smallest step, for it may have been lent under a policy whose floor counts on these.
    pub(super) fn least_activations(&self) -> u32 {
        if self.loans.balance.lent() > 0 { self.sizes.activation_least } else { self.sizes.activation_min }
    }

    /// Fewer activations, as many as are missing.
    pub(super) fn idle_activations(&self, missing: u32) -> Option<TransitionTarget> {
        let held = self.activation_chunks();
        let least = self.least_activations().max(held.saturating_sub(missing));
        // What the address range of KV has no room for becomes free.
        (least < held).then_some(TransitionTarget::Activation(least))
    }

    /// A layout that takes fewer chunks than now: the first that frees so many, else the last that is allowed. Those that the
    /// share demands in any case are, those whose stall the policy allows, and, at any cost, all.
    fn narrower_by(&self, missing: u32, at_any_cost: bool) -> Option<Layout> {
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
        let layers = self.sizes.cap_m;
        let layout = self.sizes.evenly(layers);
        let narrower = || self.sizes.weights(&layout) < self.chunks.weights_held();
        (self.params.policy().reclaims_weights() && layers >= 2 && narrower()).then_some(layout)
    }

    /// More of a share is created as a step needs it, as what a dead borrower had is.
    pub(super) fn grow(&mut self) {
        if self.loans.balance.take_growth() && self.sleep == SleepState::Awake {
            let existing = self.chunks.table().created() + self.loans.recreation.chunks();
            self.loans.recreation.add(self.budget_chunks().min(self.sizes.useful()).saturating_sub(existing));
        }
    }

    /// More layers move than may: the layout that has no more, if there is room for it that costs no request anything.
    pub(super) fn layout_below_cap(&self) -> Option<Layout> {
        let moving = self.weights.layout().moving.len();
        if moving <= usize::from(self.sizes.cap_m) || !self.change.may_retry(self.counters.boundaries()) {
            return None;
        }
        let most = self.sizes.cap_m.saturating_sub(1);
        let layout = self.choose(&Layout::resident(), most, u64::MAX).layout;
        let room = self.chunks.weights_held() + self.chunks.free_count() + self.idle_frames();
        (self.sizes.weights(&layout) <= room).then_some(layout)
    }
}

//! What a tenant frees for a peer or for a smaller share: a decision over numbers and layouts.
//!
//! | freed for a loan, in this order | cost |
//! |---|---|
//! | unused cache | later requests that would have hit it |
//! | last layers of an inactive tenant, as far as their copies hide | the wait for them when it wakes |
//!
//! | freed for a return, after these | cost |
//! |---|---|
//! | KV in use | requests are recomputed or paused, in the order of the policy |
//! | more last layers, then moving layers, whatever their stall | a longer step |
//! | idle activation space | none, but the floor counts on it |
//!
//! | freed for a smaller share, in this order | cost |
//! |---|---|
//! | unused cache | later requests that would have hit it |
//! | idle activation space (eLLM) | none |
//! | own layers: those that the smaller share takes in any case, and more while their copies hide | the allowed stall |
//! | KV in use | requests are recomputed or paused, in the order of the policy |
//! | own layers, whatever their stall | a longer step |

use super::lendable_layers::LendableLayers;
use super::transfer::TransferKind;
use crate::step_model::Layout;
use crate::transition::TransitionTarget;

/// What a tenant can free, in chunks.
#[derive(Clone, Debug)]
pub struct Reclaimable {
    /// KV chunks that can be emptied without dropping a block in use.
    pub idle_kv: u32,
    /// KV chunks above the guarantee.
    pub kv: u32,
    /// Layers that can be lent.
    pub layers: LendableLayers,
    /// Chunks of all layers and slots.
    pub weights: u32,
    /// The layout that the floor counts on, if it takes fewer chunks than now.
    pub least: Option<SmallerLayout>,
    /// The activation space.
    pub activation: ActivationSpace,
    /// No request is left to preempt: layers go, whatever their restoration costs.
    pub at_any_cost: bool,
}

/// A layout that takes fewer chunks than the one in force, or may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallerLayout {
    /// The layout.
    pub layout: Layout,
    /// Chunks of its layers and slots.
    pub chunks: u32,
    /// The share demands it in any case, or its stall is within the policy's.
    pub allowed: bool,
}

/// Activation space, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationSpace {
    /// Chunks that it has.
    pub held: u32,
    /// Chunks that it keeps in any case.
    pub kept: u32,
    /// Its idle chunks become KV under this policy (eLLM), so that they cost nothing.
    pub converts: bool,
}

impl ActivationSpace {
    /// Chunks that are not kept in any case.
    pub fn idle(&self) -> u32 {
        self.held.saturating_sub(self.kept)
    }

    /// Fewer activations, as many as are missing.
    pub fn freeing(&self, missing: u32) -> Option<TransitionTarget> {
        let left = self.kept.max(self.held.saturating_sub(missing));
        // Chunks beyond the address range of KV become free.
        (left < self.held).then_some(TransitionTarget::Activation(left))
    }
}

impl Reclaimable {
    /// The target that frees `missing` more chunks for a transfer. `layouts` take fewer and fewer chunks.
    pub fn for_transfer(
        &self,
        missing: u32,
        kind: TransferKind,
        layouts: impl Iterator<Item = SmallerLayout>,
    ) -> Option<TransitionTarget> {
        let idle = self.idle_kv.min(missing);
        let cheap = |layers: &u16| self.at_any_cost || self.layers.hides(*layers);
        if let Some(layers) = self.layers.holding(missing - idle).filter(cheap) {
            return Some(TransitionTarget::Vacate { kv_chunks: idle, layers });
        }
        if kind == TransferKind::Lend {
            return None;
        }
        let kv_chunks = self.kv.min(missing);
        let rest = missing - kv_chunks;
        let layers = self.layers.holding(rest).map(|layers| TransitionTarget::Vacate { kv_chunks, layers });
        layers
            .or_else(|| self.layout_freeing(rest, layouts).map(TransitionTarget::Layout))
            .or_else(|| self.activation.freeing(rest))
    }

    /// The cheapest target that frees some of `missing` chunks for a smaller share. `layouts` take fewer and fewer
    /// chunks.
    pub fn for_smaller_share(
        &self,
        missing: u32,
        layouts: impl Iterator<Item = SmallerLayout> + Clone,
    ) -> Option<TransitionTarget> {
        let idle = self.idle_kv.min(missing);
        if idle > 0 {
            return Some(TransitionTarget::Vacate { kv_chunks: idle, layers: 0 });
        }
        if let Some(target) = self.activation.freeing(missing).filter(|_| self.activation.converts) {
            return Some(target);
        }
        if let Some(layout) = self.layout_freeing_some(missing, self.at_any_cost, layouts.clone()) {
            return Some(TransitionTarget::Layout(layout));
        }
        let kv_chunks = self.kv.min(missing);
        if kv_chunks > 0 {
            return Some(TransitionTarget::Vacate { kv_chunks, layers: 0 });
        }
        let least = || self.least.as_ref().map(|least| least.layout.clone());
        let layout = self.layout_freeing_some(missing, true, layouts).or_else(least);
        layout.map(TransitionTarget::Layout).or_else(|| self.activation.freeing(missing))
    }

    /// The first layout that frees `missing` chunks, whatever its stall.
    fn layout_freeing(
        &self,
        missing: u32,
        mut layouts: impl Iterator<Item = SmallerLayout>,
    ) -> Option<Layout> {
        let limit = self.weights.checked_sub(missing)?;
        let fits = |smaller: &SmallerLayout| smaller.chunks <= limit;
        let found = layouts.find(fits).or_else(|| self.least.clone().filter(fits));
        found.map(|smaller| smaller.layout)
    }

    /// The first layout that frees `missing` chunks, else the last that is allowed and frees any.
    fn layout_freeing_some(
        &self,
        missing: u32,
        at_any_cost: bool,
        layouts: impl Iterator<Item = SmallerLayout>,
    ) -> Option<Layout> {
        let mut found = None;
        for smaller in layouts.take_while(|smaller| at_any_cost || smaller.allowed) {
            let freed = self.weights.saturating_sub(smaller.chunks);
            found = if freed > 0 { Some(smaller.layout) } else { found };
            if freed >= missing {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::ids::LayerId;

    fn moving(layers: u16) -> Layout {
        Layout { moving: (0..layers).map(LayerId).collect(), beta: 1 }
    }

    /// Layouts of 2, 3 and 4 moving layers, which free 4, 8 and 12 of 40 chunks. The first is allowed.
    fn layouts() -> impl Iterator<Item = SmallerLayout> + Clone {
        let all = [(2, 36, true), (3, 32, false), (4, 28, false)];
        all.into_iter().map(|(layers, chunks, allowed)| SmallerLayout {
            layout: moving(layers),
            chunks,
            allowed,
        })
    }

    /// Two KV chunks are idle, of five above the guarantee; the last two layers of four chunks can be lent, and one
    /// hides; three of eight activation chunks are idle.
    fn tenant() -> Reclaimable {
        let layers = [(9, 4), (8, 4)].map(|(layer, chunks)| (LayerId(layer), chunks));
        Reclaimable {
            idle_kv: 2,
            kv: 5,
            layers: LendableLayers::new(layers.into_iter(), 2, 1),
            weights: 40,
            least: Some(SmallerLayout { layout: moving(9), chunks: 24, allowed: false }),
            activation: ActivationSpace { held: 8, kept: 5, converts: false },
            at_any_cost: false,
        }
    }

    /// An active tenant, which lends no layers.
    fn active() -> Reclaimable {
        Reclaimable { layers: LendableLayers::default(), ..tenant() }
    }

    fn vacate(kv_chunks: u32, layers: u16) -> Option<TransitionTarget> {
        Some(TransitionTarget::Vacate { kv_chunks, layers })
    }

    fn layout(layers: u16) -> Option<TransitionTarget> {
        Some(TransitionTarget::Layout(moving(layers)))
    }

    #[test]
    fn a_loan_takes_unused_cache_and_then_layers_that_hide() {
        let targets: Vec<_> = [1, 2, 3, 6, 7]
            .map(|missing| tenant().for_transfer(missing, TransferKind::Lend, layouts()))
            .into_iter()
            .collect();
        assert_eq!(targets, [vacate(1, 0), vacate(2, 0), vacate(2, 1), vacate(2, 1), None]);
    }

    #[test]
    fn a_return_also_takes_kv_in_use_and_layers_that_stall() {
        let target =
            |tenant: Reclaimable, missing| tenant.for_transfer(missing, TransferKind::Return, layouts());
        assert_eq!(target(tenant(), 6), vacate(2, 1), "what a loan takes comes first");
        assert_eq!(target(tenant(), 7), vacate(5, 1));
        assert_eq!(target(tenant(), 13), vacate(5, 2));
        assert_eq!(target(active(), 13), layout(3), "KV gives 5 and the layout 8");
        assert_eq!(target(active(), 18), layout(9), "the layout of the floor frees 16");
        assert_eq!(target(active(), 22), Some(TransitionTarget::Activation(5)));
        let least =
            Reclaimable { activation: ActivationSpace { held: 5, ..active().activation }, ..active() };
        assert_eq!(target(least, 22), None);
    }

    #[test]
    fn without_a_request_to_preempt_layers_go_before_kv_in_use() {
        let tenant = Reclaimable { at_any_cost: true, ..tenant() };
        assert_eq!(tenant.for_transfer(10, TransferKind::Lend, layouts()), vacate(2, 2));
    }

    #[test]
    fn a_smaller_share_takes_the_cheapest_first() {
        let mut tenant = active();
        let target = |tenant: &Reclaimable| tenant.for_smaller_share(10, layouts());
        assert_eq!(target(&tenant), vacate(2, 0), "unused cache");
        tenant.idle_kv = 0;
        tenant.activation.converts = true;
        assert_eq!(target(&tenant), Some(TransitionTarget::Activation(5)), "under eLLM");
        tenant.activation.converts = false;
        assert_eq!(target(&tenant), layout(2), "the only layout that is allowed");
        tenant.at_any_cost = true;
        assert_eq!(target(&tenant), layout(4), "the first that frees 10");
    }

    #[test]
    fn a_smaller_share_takes_kv_in_use_before_layers_that_stall() {
        let refused = || layouts().map(|smaller| SmallerLayout { allowed: false, ..smaller });
        let mut tenant = Reclaimable { idle_kv: 0, ..active() };
        assert_eq!(tenant.for_smaller_share(10, refused()), vacate(5, 0));
        tenant.kv = 0;
        assert_eq!(tenant.for_smaller_share(10, refused()), layout(4));
        assert_eq!(tenant.for_smaller_share(13, refused()), layout(4), "the last, if none frees all");
        assert_eq!(tenant.for_smaller_share(10, layouts().take(0)), layout(9), "the layout of the floor");
        tenant.least = None;
        let last = tenant.for_smaller_share(1, layouts().take(0));
        assert_eq!(last, Some(TransitionTarget::Activation(7)), "as many as are missing");
    }
}

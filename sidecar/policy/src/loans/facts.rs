//! What decisions about loans read of several parts, in chunks where no other unit is named.

use super::TransferKind;
use super::lendable::LendFacts;
use super::lendable_layers::{LendableLayers, layers_that_hide};
use super::next_step::BoundaryFacts;
use super::reclaim::{ActivationSpace, Reclaimable, SmallerLayout};
use super::share::ShareLimits;
use super::view::LoanView;
use crate::ids::LayerId;
use crate::sleep::SleepState;
use crate::step_model::Layout;

impl<'a> LoanView<'a> {
    /// What the share and the floor are now.
    pub(crate) fn limits(&self) -> ShareLimits {
        let (assigned, floor) = (self.layouts.sizes.share, self.layouts.sizes.floor);
        ShareLimits { assigned, floor: if self.sleep.state() == SleepState::Asleep { 0 } else { floor } }
    }

    /// Chunks of the share that can be released now.
    pub(crate) fn share_to_release(&self) -> u32 {
        self.loans.share_to_release(self.orders.pending(), self.limits())
    }

    /// Chunks that the floor lacks.
    pub(crate) fn missing_floor(&self) -> u32 {
        self.layouts.sizes.floor.saturating_sub(self.chunks.table().created())
    }

    /// Free chunks, and those that may be created and were not.
    pub(crate) fn vacant_chunks(&self) -> u32 {
        self.chunks.free_count() + self.loans.spare_chunks(self.chunks.table().created())
    }

    /// Chunks that own layers would give at most, by the cost model.
    pub(super) fn own_chunks(&self) -> u32 {
        let remaps = self.layouts.forced.is_none() && self.layouts.cost.stats.compute_known();
        if remaps && !self.in_backoff { self.layouts.most_freed() } else { 0 }
    }

    /// What decides about a loan to a peer.
    pub(super) fn lend_facts(&self) -> LendFacts {
        let sizes = self.layouts.sizes;
        let idle_kv = self.kv.idle_chunks_above(sizes.kv_guaranteed);
        LendFacts {
            max_moving: sizes.movable_m,
            displaced: self.displaced_layers(),
            is_settled: self.is_loaded
                && self.sleep.is_settled()
                && !self.should_restore_layers()
                && self.loans.balance.excess(sizes.share) == 0,
            is_active: self.loans.is_active(),
            borrows: self.loans.borrow_request().is_some(),
            above_floor: self.loans.unpromised_chunks_above_floor(self.orders.pending(), self.limits().floor),
            idle: self.vacant_chunks() + idle_kv + self.lendable_layers().hidden_chunks(),
            promised: self.loans.outgoing_chunks(self.orders.pending(), TransferKind::Lend),
        }
    }

    /// What decides about the next action at a boundary.
    pub(crate) fn boundary_facts(&self) -> BoundaryFacts {
        BoundaryFacts {
            recreates: self.loans.may_recreate(self.orders.boundaries()) && self.recreates_at_once(),
            share_to_release: self.share_to_release(),
            vacant: self.vacant_chunks(),
            restores_layers: self.should_restore_layers(),
        }
    }

    /// A transfer, a release of share, a recreation or a restoration is due.
    pub(crate) fn has_step(&self) -> bool {
        self.loans.has_outgoing()
            || self.share_to_release() > 0
            || self.recreates_at_once()
            || self.should_restore_layers()
    }

    /// Chunks of the share are created now, not when a step needs them.
    fn recreates_at_once(&self) -> bool {
        let away = self.chunks.absent_layers() > 0 || self.layouts.is_remapped();
        self.loans.recreates_at_once(away, self.kv.requests().count() > 0)
    }

    /// Layers are absent, and the tenant has work or no peer has their memory any more.
    pub(crate) fn should_restore_layers(&self) -> bool {
        match self.sleep.state() {
            SleepState::Suspending | SleepState::Asleep => return false,
            SleepState::Waking => return true,
            SleepState::Awake => {}
        }
        let is_due = self.loans.is_active() || self.loans.nothing_lent(self.orders.pending());
        is_due && self.chunks.absent_layers() > 0
    }

    /// Layers without memory of their own.
    fn displaced_layers(&self) -> usize {
        self.layouts.current.moving.len() + usize::from(self.chunks.absent_layers())
    }

    /// Layers that an inactive tenant can lend, the last one first. Together with moving and absent layers they are at
    /// most the cap.
    pub(crate) fn lendable_layers(&self) -> LendableLayers {
        let sizes = self.layouts.sizes;
        let idle = !self.loans.is_active() && self.loaded;
        let max_moving = sizes.movable_m.filter(|_| idle).unwrap_or(0);
        let layers = (0..sizes.layers).rev().map(LayerId);
        let own = layers.filter(|layer| !self.chunks.ownership().layers[layer.index()].is_empty());
        let own = own.map(|layer| (layer, sizes.slabs[layer.index()]));
        let most = usize::from(max_moving).saturating_sub(self.displaced_layers());
        LendableLayers::new(own, most, self.hidden_layers())
    }

    /// Layers whose copies hide when the tenant wakes; all of them, if no request waits.
    fn hidden_layers(&self) -> usize {
        if !self.loans.is_busy() {
            return usize::MAX;
        }
        let stats = self.layouts.cost.stats;
        let transfer_ns = stats.transfer_ns().into_iter().max().unwrap_or(0);
        layers_that_hide(stats.token_compute_ns(), transfer_ns, self.chunks.absent_layers())
    }

    /// The activation space. While chunks are lent, it keeps those of the smallest step: they may have been lent under
    /// a policy whose floor counts on these.
    pub(super) fn activation_space(&self) -> ActivationSpace {
        let sizes = self.layouts.sizes;
        let kept = if self.loans.balance.lent() > 0 { sizes.activation_least } else { sizes.activation_min };
        let converts = sizes.activation_kept.is_some();
        ActivationSpace { held: self.chunks.activation_chunks(), kept, converts }
    }

    /// What can be freed for a transfer or a smaller share.
    pub(crate) fn reclaimable(&self) -> Reclaimable {
        let (sizes, weights) = (self.layouts.sizes, self.chunks.weights_held());
        Reclaimable {
            idle_kv: self.kv.idle_chunks_above(sizes.kv_guaranteed),
            kv: self.kv.chunk_pool().above(sizes.kv_guaranteed),
            layers: self.lendable_layers(),
            weights,
            least: sizes.least_layout(weights).map(|layout| self.smaller(layout, false)),
            activation: self.activation_space(),
            at_any_cost: self.loans.forces_reclaim(),
        }
    }

    /// Layouts, each with fewer chunks than the one before. A layout is allowed if the tenant is inactive, if the share
    /// demands it in any case, or if its stall is within the policy's allowance.
    pub(crate) fn smaller_layouts(self) -> impl Iterator<Item = SmallerLayout> + Clone + 'a {
        let (cost, base) = (self.layouts.cost, self.layouts.base);
        let allowance_ns = cost.allowance_ns();
        self.larger_remaps().map(move |layout| {
            let allowed = !self.loans.is_active()
                || layout.alpha() <= base.alpha()
                || cost.stats.compute_known() && cost.stall_ns(&layout) <= allowance_ns;
            self.smaller(layout, allowed)
        })
    }

    /// Layouts in the order of the layers that they free. The first one frees one layer more than now.
    pub(super) fn larger_remaps(self) -> impl Iterator<Item = Layout> + Clone + 'a {
        self.layouts.larger(self.loans.balance.lent() > 0)
    }

    fn smaller(&self, layout: Layout, allowed: bool) -> SmallerLayout {
        SmallerLayout { chunks: self.layouts.sizes.weights(&layout), layout, allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Chunks;
    use crate::chunks::tests::{geometry, loaded};
    use crate::cost::{CostModel, LayoutSearch, StepStats};
    use crate::ids::KvChunkId;
    use crate::kv::Kv;
    use crate::loans::Loans;
    use crate::orders::Orders;
    use crate::params::Params;
    use crate::revert::Hysteresis;
    use crate::sizes::Sizes;
    use crate::sleep::Sleep;
    use crate::transition::TransitionTarget;

    /// A loaded tenant with four layers of two chunks, three activation chunks and two KV chunks, one of which is
    /// guaranteed. No step was measured.
    struct Tenant {
        loans: Loans,
        chunks: Chunks,
        kv: Kv,
        sleep: Sleep,
    }

    impl Tenant {
        fn new() -> Tenant {
            let mut kv = Kv::new(4, 8, geometry().layer_blocks_per_chunk(), 0, true);
            (0..2).for_each(|kv_chunk| kv.chunk_pool_mut().back(KvChunkId(kv_chunk)));
            let loans = Loans::new(16, Hysteresis::new(1, 0));
            Tenant { loans, chunks: loaded(), kv, sleep: Sleep::default() }
        }

        /// It has lent the last layer: its chunks are the borrower's.
        fn lender() -> Tenant {
            let mut tenant = Tenant::new();
            tenant.chunks.apply(tenant.chunks.vacated(&[LayerId(3)], &[]));
            let free: alloc::vec::Vec<_> = tenant.chunks.table().free().collect();
            tenant.chunks.release(&free);
            tenant.loans.balance.on_lent(free.len() as u32);
            tenant
        }

        fn ask<T>(&self, question: impl FnOnce(LoanView<'_>) -> T) -> T {
            let params = Params {
                max_model_tokens: 1,
                guaranteed_kv_bytes: 64,
                kv_limit_bytes: 512,
                share_chunks: 16,
                remap_cap_permille: 750,
                ..Params::default()
            };
            let sizes = Sizes::new(&params, &geometry()).expect("the tenant can be served");
            let stats = StepStats::new(&params, &geometry().slab_bytes);
            let resident = Layout::resident();
            let cost = CostModel::new(&stats, &params);
            question(LoanView {
                loans: &self.loans,
                orders: &Orders::new(false),
                chunks: &self.chunks,
                kv: &self.kv,
                sleep: &self.sleep,
                layouts: LayoutSearch {
                    cost,
                    sizes: &sizes,
                    current: &resident,
                    base: &resident,
                    forced: None,
                },
                loaded: true,
                is_loaded: true,
                in_backoff: false,
            })
        }
    }

    #[test]
    fn only_an_inactive_tenant_lends_layers_the_last_ones_first() {
        let mut tenant = Tenant::new();
        let lendable = |tenant: &Tenant| tenant.ask(|loans| loans.lendable_layers().first(u16::MAX));
        assert_eq!(lendable(&tenant), []);
        tenant.loans.set_demand(false, false);
        assert_eq!(lendable(&tenant), [LayerId(3), LayerId(2), LayerId(1)], "three of four, by the cap");
        assert_eq!(lendable(&Tenant { loans: tenant.loans, ..Tenant::lender() }), [LayerId(2), LayerId(1)]);
    }

    #[test]
    fn absent_layers_are_restored_for_work_or_once_no_peer_has_memory() {
        let mut tenant = Tenant::lender();
        let due = |tenant: &Tenant| tenant.ask(|loans| loans.should_restore_layers());
        assert!(due(&tenant), "it is active");
        tenant.loans.set_demand(false, false);
        assert!(!due(&tenant), "a peer has the memory");
        tenant.loans.balance.on_lent_returned(2);
        assert!(due(&tenant), "no peer has it");
        tenant.sleep.suspend();
        assert!(!due(&tenant), "it falls asleep");
        assert!(!due(&Tenant::new()), "no layer is absent");
    }

    #[test]
    fn a_sleeping_tenant_keeps_no_floor() {
        let mut tenant = Tenant::new();
        let floor = |tenant: &Tenant| tenant.ask(|loans| loans.limits().floor);
        assert!(floor(&tenant) > 0);
        tenant.sleep.suspend();
        assert!(floor(&tenant) > 0, "it still holds memory");
        tenant.sleep.on_asleep();
        assert_eq!(floor(&tenant), 0);
    }

    #[test]
    fn lent_layers_are_restored_in_place_or_through_a_slot() {
        let mut tenant = Tenant::lender();
        let target = |tenant: &Tenant| tenant.ask(|loans| loans.restoration());
        // Six of eight chunks are left: two layers keep theirs, and two share a slot of two chunks.
        let Some(TransitionTarget::Layout(moving)) = target(&tenant) else { panic!("a layout fits") };
        assert_eq!((moving.moving.len(), moving.beta), (2, 1));
        tenant.chunks.create(&crate::chunks::tests::ids([8, 9]));
        assert_eq!(target(&tenant), Some(TransitionTarget::Layout(Layout::resident())));
    }
}

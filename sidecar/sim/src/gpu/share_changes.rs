//! The GPU is dealt out anew: what each tenant may hold and give away changes while it runs.

use sluice_policy::memory_manager::{MemoryManager, fits};
use sluice_policy::params::{Bounds, Params};
use sluice_scheduler::Event;

use super::Gpu;
use super::tenant::{SimTenant, TenantSetup};

impl SimTenant {
    fn manager(&self) -> Option<&MemoryManager> {
        self.instance.as_ref().map(|life| life.driver.scheduler().manager())
    }
}

impl Gpu {
    /// Every tenant is told its share and its cap. A share that falls falls at once; one that rises waits until others have
    /// given theirs up, for no more is dealt out than there is.
    pub fn set_shares(&mut self, bounds: Vec<Bounds>) {
        for (seat, bounds) in self.tenants.iter_mut().zip(bounds) {
            (seat.bounds, seat.has_sent_bounds) = (bounds, false);
        }
        self.apply_shares();
    }

    /// Shares that fell while memory was held of them.
    pub fn share_reductions(&self) -> u64 {
        self.share_reductions
    }

    pub(super) fn apply_shares(&mut self) {
        for at in 0..self.tenants.len() {
            let seat = &self.tenants[at];
            let Some(manager) = seat.manager().filter(|_| !seat.has_sent_bounds) else { continue };
            let (dealt, before) = (seat.bounds, manager.share_chunks());
            if dealt.share_chunks > before && !self.can_apply_share(at) {
                continue;
            }
            self.share_reductions += u64::from(dealt.share_chunks < manager.ledger().created());
            self.tenants[at].has_sent_bounds = true;
            self.push(at, Event::Bounds(dealt));
        }
    }

    /// Shares in force leave room for what this tenant was dealt.
    pub(super) fn can_apply_share(&self, at: usize) -> bool {
        let others = self.tenants.iter().enumerate().filter(|(other, _)| *other != at);
        let share = |(_, seat): (usize, &SimTenant)| {
            let manager = seat.manager()?;
            // What it was told and has not heard yet counts as well.
            Some(u64::from(manager.share_chunks().max(if seat.has_sent_bounds {
                seat.bounds.share_chunks
            } else {
                0
            })))
        };
        let taken: u64 = others.filter_map(share).sum();
        taken + u64::from(self.tenants[at].bounds.share_chunks) <= u64::from(self.setup.capacity_chunks)
    }

    /// What a new life begins with: with as much to remap as it was set up with, where its share needs that.
    pub(super) fn restart_setup(&self, at: usize) -> TenantSetup {
        let SimTenant { setup, bounds: dealt, .. } = &self.tenants[at];
        let Bounds { share_chunks, remap_cap_permille } = *dealt;
        let params = Params { share_chunks, remap_cap_permille, ..setup.params.clone() };
        let fit = fits(&params, &setup.geometry).is_ok();
        let remap_cap_permille = if fit { remap_cap_permille } else { setup.params.remap_cap_permille };
        TenantSetup { params: Params { remap_cap_permille, ..params }, ..setup.clone() }
    }
}

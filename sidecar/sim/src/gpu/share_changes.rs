//! Changes of the tenants' shares and remap caps at run time.

use sluice_policy::memory_manager::{MemoryManager, fits};
use sluice_policy::params::{Bounds, Params};
use sluice_scheduler::Event;

use super::Gpu;
use super::tenant::{SimTenant, TenantSetup};

impl SimTenant {
    fn manager(&self) -> Option<&MemoryManager> {
        self.instance.as_ref().map(|instance| instance.driver.scheduler().manager())
    }
}

impl Gpu {
    /// Sends every tenant its share and its cap. A smaller share applies at once. A larger one waits until the other
    /// tenants' shares leave space, because the sum of shares never exceeds the capacity.
    pub fn set_shares(&mut self, bounds: Vec<Bounds>) {
        for (tenant, bounds) in self.tenants.iter_mut().zip(bounds) {
            (tenant.bounds, tenant.has_sent_bounds) = (bounds, false);
        }
        self.apply_shares();
    }

    /// Returns how often a share fell below the memory that the tenant held.
    pub fn share_reductions(&self) -> u64 {
        self.share_reductions
    }

    pub(super) fn apply_shares(&mut self) {
        for at in 0..self.tenants.len() {
            let tenant = &self.tenants[at];
            let Some(manager) = tenant.manager().filter(|_| !tenant.has_sent_bounds) else { continue };
            let (dealt, before) = (tenant.bounds, manager.loans().share_chunks());
            if dealt.share_chunks > before && !self.can_apply_share(at) {
                continue;
            }
            self.share_reductions += u64::from(dealt.share_chunks < manager.figures().ledger().created());
            self.tenants[at].has_sent_bounds = true;
            self.push(at, Event::Bounds(dealt));
        }
    }

    /// Whether the other tenants' shares leave space for this tenant's new share.
    pub(super) fn can_apply_share(&self, at: usize) -> bool {
        let others = self.tenants.iter().enumerate().filter(|(other, _)| *other != at);
        let share = |(_, tenant): (usize, &SimTenant)| {
            let manager = tenant.manager()?;
            // A share that was sent but not yet processed counts as well.
            Some(u64::from(manager.loans().share_chunks().max(if tenant.has_sent_bounds {
                tenant.bounds.share_chunks
            } else {
                0
            })))
        };
        let taken: u64 = others.filter_map(share).sum();
        taken + u64::from(self.tenants[at].bounds.share_chunks) <= u64::from(self.setup.capacity_chunks)
    }

    /// Returns the setup of a new instance. Keeps the configured remap cap if the share is too small for the current
    /// one.
    pub(super) fn restart_setup(&self, at: usize) -> TenantSetup {
        let SimTenant { setup, bounds: dealt, .. } = &self.tenants[at];
        let Bounds { share_chunks, remap_cap_permille } = *dealt;
        let params = Params { share_chunks, remap_cap_permille, ..setup.params.clone() };
        let fit = fits(&params, &setup.geometry).is_ok();
        let remap_cap_permille = if fit { remap_cap_permille } else { setup.params.remap_cap_permille };
        TenantSetup { params: Params { remap_cap_permille, ..params }, ..setup.clone() }
    }
}

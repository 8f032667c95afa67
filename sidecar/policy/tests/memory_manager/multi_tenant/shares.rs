//! Assigns new shares while the tenants work.

use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Bounds;

use super::harness::SimGpu;

impl SimGpu {
    /// Assigns new shares and caps to all tenants, within the GPU. A tenant that cannot follow reports it and continues
    /// as before.
    pub(super) fn assign_shares(&mut self) {
        let floor = self.largest_floor();
        let mut left = (self.share - floor) * self.slots.len() as u32;
        for at in 0..self.slots.len() {
            let more = self.rng.below(u64::from(left) + 1) as u32;
            left -= more;
            let caps = [0, 300, self.params.remap_cap_permille, 1000];
            let remap_cap_permille = caps[self.rng.below(4) as usize];
            self.assigned[at] = Bounds { share_chunks: floor + more, remap_cap_permille };
        }
    }

    /// Returns a floor that every new instance can have, under any assignment.
    fn largest_floor(&self) -> u32 {
        let manager =
            MemoryManager::new(self.params.clone(), self.geometry.clone()).expect("a tenant that fits");
        (manager.loans().floor_chunks() + self.case.later_floor).min(self.share)
    }

    /// Whether the GPU has capacity for the tenant's new share: a larger share waits until others have released theirs.
    pub(super) fn has_room(&self, at: usize) -> bool {
        let others =
            (0..self.slots.len()).filter(|other| *other != at).filter_map(|other| self.manager(other));
        let taken: u32 = others.map(|manager| manager.loans().share_chunks()).sum();
        taken + self.assigned[at].share_chunks <= self.share * self.slots.len() as u32
    }

    /// Applies the tenant's latest assignment, as far as possible.
    pub(super) fn apply_assignment(&mut self, at: usize) {
        let wanted = self.assigned[at];
        let manager = self.manager(at).expect("it lives");
        let larger = wanted.share_chunks > manager.loans().share_chunks();
        if wanted == manager.params().bounds() || larger && !self.has_room(at) {
            return;
        }
        let held = manager.figures().ledger().created();
        // A rejected assignment changes nothing.
        let applied = self.with(at, |world| world.manager.set_bounds(wanted).is_ok());
        self.released += u32::from(applied && wanted.share_chunks < held);
    }
}

//! The GPU is dealt out anew: what each tenant may hold and give away changes while it runs.

use sluice_policy::memory_manager::{MemoryManager, fits};
use sluice_policy::params::{Bounds, Params};
use sluice_scheduler::Event;

use super::Gpu;
use super::seat::{Seat, TenantSetup};

impl Seat {
    fn manager(&self) -> Option<&MemoryManager> {
        self.life.as_ref().map(|life| life.driver.core().manager())
    }
}

impl Gpu {
    /// Every tenant is told its share and its cap. A share that falls falls at once; one that rises waits until others have
    /// given theirs up, for no more is dealt out than there is.
    pub fn deal(&mut self, bounds: Vec<Bounds>) {
        for (seat, bounds) in self.seats.iter_mut().zip(bounds) {
            (seat.dealt, seat.told) = (bounds, false);
        }
        self.follow();
    }

    /// Shares that fell while memory was held of them.
    pub fn falls(&self) -> u64 {
        self.falls
    }

    pub(super) fn follow(&mut self) {
        for at in 0..self.seats.len() {
            let seat = &self.seats[at];
            let Some(manager) = seat.manager().filter(|_| !seat.told) else { continue };
            let (dealt, before) = (seat.dealt, manager.share_chunks());
            if dealt.share_chunks > before && !self.has_room(at) {
                continue;
            }
            self.falls += u64::from(dealt.share_chunks < manager.ledger().created());
            self.seats[at].told = true;
            self.push(at, Event::Bounds(dealt));
        }
    }

    /// Shares in force leave room for what this tenant was dealt.
    pub(super) fn has_room(&self, at: usize) -> bool {
        let others = self.seats.iter().enumerate().filter(|(other, _)| *other != at);
        let share = |(_, seat): (usize, &Seat)| {
            let manager = seat.manager()?;
            // What it was told and has not heard yet counts as well.
            Some(u64::from(manager.share_chunks().max(if seat.told { seat.dealt.share_chunks } else { 0 })))
        };
        let taken: u64 = others.filter_map(share).sum();
        taken + u64::from(self.seats[at].dealt.share_chunks) <= u64::from(self.setup.capacity_chunks)
    }

    /// What a new life begins with: with as much to remap as it was set up with, where its share needs that.
    pub(super) fn born_with(&self, at: usize) -> TenantSetup {
        let Seat { setup, dealt, .. } = &self.seats[at];
        let Bounds { share_chunks, remap_cap_permille } = *dealt;
        let params = Params { share_chunks, remap_cap_permille, ..setup.params.clone() };
        let fit = fits(&params, &setup.geometry).is_ok();
        let remap_cap_permille = if fit { remap_cap_permille } else { setup.params.remap_cap_permille };
        TenantSetup { params: Params { remap_cap_permille, ..params }, ..setup.clone() }
    }
}

//! Plans which requests leave the device before a step is planned, because the tenant falls asleep, memory is owed, or
//! an offloaded prompt is computed. `pauses` plans the pauses.

use sluice_policy::memory_manager::{SleepState, SuspendReason};

use super::Planner;
use crate::sequence::Sequence;
use crate::step_plan::Eviction;

impl Planner<'_> {
    /// Plans that all running requests wait with their KV if the tenant falls asleep.
    pub(in crate::scheduler) fn plan_sleep(&self) -> Vec<Eviction> {
        if self.manager.status().sleep_state() != SleepState::Suspending {
            return Vec::new();
        }
        self.suspended(|_| true, SuspendReason::Sleep)
    }

    /// Plans that requests whose offloaded prompt has its first token wait until their KV fits on the device.
    pub(in crate::scheduler) fn plan_offloaded(&self) -> Vec<Eviction> {
        self.suspended(|one| one.waiting_offloaded, SuspendReason::PrefillOffloaded)
    }

    fn suspended(&self, which: impl Fn(&Sequence) -> bool, reason: SuspendReason) -> Vec<Eviction> {
        let running = self.requests.running.iter().filter(|one| which(one));
        running.map(|one| Eviction::Suspend(one.id(), reason)).collect()
    }

    /// Plans what leaves next for memory that is owed: the running requests but the oldest, then own layers, then KV of
    /// waiting requests. None if nothing is owed or nothing is left. A tenant that falls asleep owes its whole memory,
    /// and drops KV that the host tier has no space for, too.
    pub(in crate::scheduler) fn plan_debt(&self, has_asked_layers: bool) -> Option<Eviction> {
        let status = self.manager.status();
        if !self.manager.loans().debt_lacks_room() {
            return None;
        }
        if self.requests.running.len() > 1 {
            return self.choose_debt_victim();
        }
        if !has_asked_layers {
            return Some(Eviction::ReclaimLayers);
        }
        let dropped = match status.sleep_state() {
            SleepState::Awake => self.requests.last_suspended(|id| self.manager.kv_of(id).on_device()),
            SleepState::Suspending if !status.is_blocked() => self.requests.last_suspended(|_| true),
            SleepState::Suspending | SleepState::Asleep | SleepState::Waking => None,
        };
        dropped.map(Eviction::DropSuspended)
    }
}

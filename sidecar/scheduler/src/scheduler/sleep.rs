//! Puts the tenant to sleep and wakes it.

use sluice_policy::ids::Nanos;

use super::Scheduler;
use crate::event::Sleep;

impl Scheduler {
    /// Handles an order to sleep or to wake.
    pub(super) fn sleep(&mut self, order: Sleep) {
        match order {
            Sleep::Idle if self.requests.any() => {}
            Sleep::Idle => self.manager.sleep(true),
            // Takes effect at the next boundary: a step may be running or waiting for its replay.
            Sleep::Ordered | Sleep::Discard => self.sleep_requested = Some(order),
            Sleep::WakeUp => {
                self.sleep_requested = None;
                self.manager.wake_up();
            }
        }
    }

    /// Starts or ends sleep: work wakes a tenant unless it sleeps by order. Falling asleep suspends all running
    /// requests.
    pub(super) fn sleep_or_wake(&mut self, now: Nanos) {
        if let Some(order) = self.sleep_requested {
            self.manager.sleep(order == Sleep::Ordered);
        } else if self.requests.any() {
            self.manager.wake_up();
        }
        let suspended = self.planner(now).plan_sleep();
        self.evict_all(now, &suspended);
    }
}

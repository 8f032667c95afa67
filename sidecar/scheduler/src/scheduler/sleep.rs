//! Puts the tenant to sleep, wakes it, and suspends or requeues its requests.

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::{MemoryManager, SleepState, SuspendReason};

use super::Scheduler;
use crate::event::{Finish, Sleep};
use crate::sequence::Sequence;

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
    pub(super) fn sleep_or_wake(&mut self) {
        if let Some(order) = self.sleep_requested {
            self.manager.sleep(order == Sleep::Ordered);
        } else if self.requests.any() {
            self.manager.wake_up();
        }
        if self.manager.status().sleep_state() == SleepState::Suspending {
            let running: Vec<_> = self.requests.running.iter().map(Sequence::id).collect();
            running.into_iter().for_each(|id| {
                self.suspend_with_kv(id, SuspendReason::Sleep);
            });
        }
    }

    /// Requeues suspended requests whose KV does not fit into the host tier for recomputation.
    pub(super) fn make_host_room(&mut self, now: Nanos) {
        let must_wait = |manager: &MemoryManager| {
            manager.status().sleep_state() == SleepState::Suspending
                && manager.status().debt_lacks_room()
                && !manager.status().is_blocked()
        };
        while must_wait(&self.manager) && self.drop_suspended_kv(|_, _| true) {
            self.manager.boundary(now, &mut self.actions);
        }
    }

    /// Requeues requests whose KV was lost between host and device for recomputation.
    pub(super) fn requeue_lost(&mut self) {
        for id in self.manager.take_lost_requests() {
            if self.requests.running.get(id).is_some_and(|sequence| sequence.cancelled) {
                self.end(id, Finish::Cancelled);
            } else if let Some(sequence) = self.remove_running(id) {
                self.requeue_for_recompute(sequence);
            } else {
                self.drop_kv_of(id);
            }
        }
    }
}

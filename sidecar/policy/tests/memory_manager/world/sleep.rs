//! The part of the scheduler that puts the tenant to sleep and wakes it.

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{MemoryManager, SleepState, SuspendReason};

use super::super::device::chance;
use super::World;

impl World {
    /// Requeues all requests with their KV and puts the tenant to sleep.
    pub fn start_sleep(&mut self) {
        for mut request in std::mem::take(&mut self.running).into_iter().rev() {
            request.kept = true;
            self.manager.suspend(request.id, SuspendReason::Sleep);
            self.tables.remove(&request.id);
            self.waiting.push_front(request);
        }
        self.manager.sleep(true);
    }

    /// Puts the tenant to sleep, or wakes it, at random.
    pub(super) fn maybe_sleep(&mut self) {
        if self.sleep_permille == 0 || !chance(&mut self.rng, self.sleep_permille) {
            return;
        }
        if self.manager.status().sleep_state() == SleepState::Awake {
            self.start_sleep();
        } else if self.busy() {
            self.manager.wake_up();
        }
    }

    /// Requeues requests whose KV was lost in transfer for recomputation.
    pub(super) fn requeue_lost(&mut self) {
        let lost = self.manager.take_lost_requests();
        let (lost_requests, still_running): (Vec<_>, Vec<_>) =
            self.running.drain(..).partition(|r| lost.contains(&r.id));
        self.running = still_running;
        for request in lost_requests.into_iter().rev() {
            self.tables.remove(&request.id);
            self.waiting.push_front(request);
        }
        for request in self.waiting.iter_mut().filter(|request| lost.contains(&request.id)) {
            self.dropped += 1;
            (request.kept, request.computed) = (false, 0);
            self.manager.close(request.id);
        }
    }

    /// Requeues requests whose KV was lost, or does not fit into the host tier, for recomputation.
    pub(super) fn finish_sleep(&mut self) {
        self.requeue_lost();
        while self.manager.status().sleep_state() == SleepState::Suspending
            && self.manager.loans().debt_lacks_room()
            && !self.manager.status().is_blocked()
        {
            assert!(self.drop_suspended_kv(|_, _| true), "only requests stand in the way of sleep");
            let now = self.now;
            self.send_event(|manager, out| manager.boundary(now, out));
        }
    }

    /// Drops the KV of the last suspended request that matches.
    pub(super) fn drop_suspended_kv(&mut self, which: impl Fn(&MemoryManager, RequestId) -> bool) -> bool {
        let manager = &self.manager;
        let kept = self.waiting.iter_mut().rev().find(|request| request.kept && which(manager, request.id));
        let Some(request) = kept else { return false };
        (request.kept, request.computed) = (false, 0);
        self.manager.close(request.id);
        self.dropped += 1;
        true
    }
}

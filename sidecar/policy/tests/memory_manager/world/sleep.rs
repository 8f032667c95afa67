//! The part of the scheduler that puts the tenant to sleep and wakes it.

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{MemoryManager, SleepState};

use super::World;

impl World {
    /// Requests go back to the queue with their KV, and the tenant gives up its memory.
    pub fn start_sleep(&mut self) {
        for mut request in std::mem::take(&mut self.running).into_iter().rev() {
            request.kept = true;
            self.manager.suspend_request(request.id);
            self.tables.remove(&request.id);
            self.waiting.push_front(request);
        }
        self.manager.hibernate(true);
    }

    /// Now and then the tenant is put to sleep, and, as there is work, woken.
    pub(super) fn maybe_sleep(&mut self) {
        if self.sleep_permille == 0 || !self.rng.permille(self.sleep_permille) {
            return;
        }
        if self.manager.sleep_state() == SleepState::Awake {
            self.start_sleep();
        } else if self.busy() {
            self.manager.wake();
        }
    }

    /// What was lost on its way is computed again.
    pub(super) fn requeue_lost(&mut self) {
        let lost = self.manager.take_lost_requests();
        let (gone, going): (Vec<_>, Vec<_>) = self.running.drain(..).partition(|r| lost.contains(&r.id));
        self.running = going;
        for request in gone.into_iter().rev() {
            self.tables.remove(&request.id);
            self.waiting.push_front(request);
        }
        for request in self.waiting.iter_mut().filter(|request| lost.contains(&request.id)) {
            self.dropped += 1;
            (request.kept, request.committed) = (false, 0);
            self.manager.close(request.id);
        }
    }

    /// What has no room in the host tier, or was lost on its way, is computed again.
    pub(super) fn finish_sleep(&mut self) {
        self.requeue_lost();
        while self.manager.sleep_state() == SleepState::Suspending
            && self.manager.debt_is_blocked()
            && !self.manager.is_blocked()
        {
            assert!(self.drop_suspended_kv(|_, _| true), "only requests stand in the way of sleep");
            let now = self.now;
            self.send_event(|manager, out| manager.boundary(now, out));
        }
    }

    /// The last request that waits with its KV waits without it.
    pub(super) fn drop_suspended_kv(&mut self, which: impl Fn(&MemoryManager, RequestId) -> bool) -> bool {
        let manager = &self.manager;
        let kept = self.waiting.iter_mut().rev().find(|request| request.kept && which(manager, request.id));
        let Some(request) = kept else { return false };
        (request.kept, request.committed) = (false, 0);
        self.manager.close(request.id);
        self.dropped += 1;
        true
    }
}

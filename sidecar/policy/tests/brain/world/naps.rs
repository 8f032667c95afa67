//! The part of the scheduler that puts the tenant to sleep and wakes it.

use sluice_policy::brain::{Brain, Rest};
use sluice_policy::ids::RequestId;

use super::World;

impl World {
    /// Requests go back to the queue with their KV, and the tenant gives up its memory.
    pub fn fall_asleep(&mut self) {
        for mut request in std::mem::take(&mut self.running).into_iter().rev() {
            request.kept = true;
            self.brain.suspend(request.id);
            self.tables.remove(&request.id);
            self.waiting.push_front(request);
        }
        self.brain.hibernate(true);
    }

    /// Now and then the tenant is put to sleep, and, as there is work, woken.
    pub(super) fn nap(&mut self) {
        if self.nap_permille == 0 || !self.rng.permille(self.nap_permille) {
            return;
        }
        if self.brain.rest() == Rest::Awake {
            self.fall_asleep();
        } else if self.busy() {
            self.brain.wake();
        }
    }

    /// What was lost on its way is computed again.
    pub(super) fn settle_lost(&mut self) {
        let lost = self.brain.take_lost();
        let (gone, going): (Vec<_>, Vec<_>) = self.running.drain(..).partition(|r| lost.contains(&r.id));
        self.running = going;
        for request in gone.into_iter().rev() {
            self.tables.remove(&request.id);
            self.waiting.push_front(request);
        }
        for request in self.waiting.iter_mut().filter(|request| lost.contains(&request.id)) {
            self.dropped += 1;
            (request.kept, request.committed) = (false, 0);
            self.brain.close(request.id);
        }
    }

    /// What has no room in the host tier, or was lost on its way, is computed again.
    pub(super) fn settle_naps(&mut self) {
        self.settle_lost();
        while self.brain.rest() == Rest::Falling && self.brain.stuck() && !self.brain.blocked() {
            assert!(self.drop_kept(|_, _| true), "only requests stand in the way of sleep");
            let now = self.now;
            self.tell(|brain, out| brain.boundary(now, out));
        }
    }

    /// The last request that waits with its KV waits without it.
    pub(super) fn drop_kept(&mut self, which: impl Fn(&Brain, RequestId) -> bool) -> bool {
        let brain = &self.brain;
        let kept = self.waiting.iter_mut().rev().find(|request| request.kept && which(brain, request.id));
        let Some(request) = kept else { return false };
        (request.kept, request.committed) = (false, 0);
        self.brain.close(request.id);
        self.dropped += 1;
        true
    }
}

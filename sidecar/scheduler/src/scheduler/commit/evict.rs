//! Carries out evictions, of the plan of a step and before it: pauses, preemptions, dropped KV, remapped layers.
//! Nothing else takes KV or the device from a request that goes on.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::SuspendReason;

use crate::event::{Finish, SchedulerOutput};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::step_plan::Eviction;

impl Scheduler {
    /// Carries out evictions.
    pub(in crate::scheduler) fn evict_all(&mut self, now: Nanos, evictions: &[Eviction]) {
        for eviction in evictions {
            self.evict(now, eviction);
        }
    }

    /// Carries out an eviction. Returns whether it began.
    pub(in crate::scheduler) fn evict(&mut self, now: Nanos, eviction: &Eviction) -> bool {
        match eviction {
            Eviction::Suspend(id, reason) => self.suspend(now, *id, *reason),
            Eviction::Preempt(id) => self.preempt(*id),
            Eviction::DropSuspended(id) => self.drop_suspended(*id),
            Eviction::Remap { stalling, .. } => {
                self.manager.apply_stalling_remap(stalling.clone(), &mut self.actions)
            }
            Eviction::ReclaimLayers => {
                self.manager.loans_mut().force_reclaim();
                true
            }
        }
    }

    /// Evicts for memory that is owed, one eviction after the other: each boundary finds out whether more is needed.
    pub(in crate::scheduler) fn evict_for_debt(&mut self, now: Nanos) {
        let mut has_asked_layers = false;
        while let Some(eviction) = self.planner(now).plan_debt(has_asked_layers) {
            has_asked_layers |= eviction == Eviction::ReclaimLayers;
            self.evict(now, &eviction);
            self.manager.boundary(now, &mut self.actions);
        }
    }

    /// Requeues requests whose KV was lost between host and device for recomputation.
    pub(in crate::scheduler) fn requeue_lost(&mut self) {
        for id in self.manager.take_lost_requests() {
            if self.requests.running.get(id).is_some_and(|sequence| sequence.cancelled) {
                self.end(id, Finish::Cancelled);
            } else if !self.preempt(id) {
                self.drop_suspended(id);
            }
        }
    }

    /// Preempts a running request: it waits and is recomputed from the same tokens.
    fn preempt(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.remove_running(id) else { return false };
        self.requeue_for_recompute(sequence);
        true
    }

    /// Drops the KV of a waiting request: it is recomputed from the same tokens.
    fn drop_suspended(&mut self, id: RequestId) -> bool {
        if !self.requests.queue.get(id).is_some_and(|sequence| sequence.kv_suspended) {
            return false;
        }
        let Some(sequence) = self.requests.queue.remove(id) else { return false };
        self.manager.close(id);
        self.requeue_for_recompute(sequence);
        true
    }

    fn requeue_for_recompute(&mut self, mut sequence: Sequence) {
        let dropped_tokens = sequence.preempt();
        self.counters.preemptions += 1;
        self.outputs.push(SchedulerOutput::Preempted { request: sequence.id(), dropped_tokens });
        self.requests.queue.push(sequence);
    }

    /// Moves a running request to the wait queue with its KV.
    fn suspend(&mut self, now: Nanos, id: RequestId, reason: SuspendReason) -> bool {
        let Some(mut sequence) = self.requests.running.take(id) else { return false };
        if reason == SuspendReason::Pause {
            self.record_pause(now, &sequence);
        }
        (sequence.kv_suspended, sequence.prefill_offloaded) = (true, false);
        self.manager.suspend(id, reason);
        self.requests.queue.push(sequence);
        true
    }

    /// Counts the time of a pause. With deadlines it begins when the client has read its buffered tokens, because the
    /// client does not notice the pause before.
    fn record_pause(&mut self, now: Nanos, sequence: &Sequence) {
        let by_deadline = self.manager.params().deadlines().is_some();
        let from = if by_deadline { sequence.buffered_until(now) } else { now };
        self.requests.pauses.pause(sequence.id(), from);
        self.counters.pauses += 1;
    }
}

//! Takes KV or the device from requests: pauses, preemptions and dropped KV.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{MemoryManager, SuspendReason};

use super::Scheduler;
use crate::event::SchedulerOutput;
use crate::sequence::Sequence;
use crate::step_plan::Eviction;

impl Scheduler {
    /// Carries out evictions.
    pub(super) fn evict_all(&mut self, now: Nanos, evictions: &[Eviction]) {
        for eviction in evictions {
            self.evict(now, eviction);
        }
    }

    /// Carries out an eviction. Returns whether it began.
    pub(super) fn evict(&mut self, now: Nanos, eviction: &Eviction) -> bool {
        match eviction {
            Eviction::Pause(id) => self.pause(now, *id),
            Eviction::Preempt(id) => self.preempt(*id),
            Eviction::DropSuspended(id) => self.drop_kv_of(*id),
            Eviction::Remap { stalling, .. } => {
                self.manager.apply_stalling_remap(stalling.clone(), &mut self.actions)
            }
        }
    }

    /// Preempts a running request: it waits and is recomputed from the same tokens.
    fn preempt(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.remove_running(id) else { return false };
        self.requeue_for_recompute(sequence);
        true
    }

    /// Queues a request whose memory was freed for recomputation.
    pub(super) fn requeue_for_recompute(&mut self, mut sequence: Sequence) {
        let dropped_tokens = sequence.preempt();
        self.counters.preemptions += 1;
        self.outputs.push(SchedulerOutput::Preempted { request: sequence.id(), dropped_tokens });
        self.requests.queue.push(sequence);
    }

    /// Pauses a running request: it waits with its KV.
    fn pause(&mut self, now: Nanos, id: RequestId) -> bool {
        // The client does not notice the pause before it has read its buffered tokens, so the pause counts from then.
        let by_deadline = self.manager.params().deadlines().is_some();
        let sequence = self.requests.running.get(id).filter(|_| by_deadline);
        let from = sequence.map_or(now, |one| one.buffered_until(now));
        let suspended = self.suspend_with_kv(id, SuspendReason::Pause);
        if suspended {
            self.requests.pauses.pause(id, from);
            self.counters.pauses += 1;
        }
        suspended
    }

    /// Moves a running request to the wait queue with its KV.
    pub(super) fn suspend_with_kv(&mut self, id: RequestId, reason: SuspendReason) -> bool {
        let Some(mut sequence) = self.requests.running.take(id) else { return false };
        (sequence.kv_suspended, sequence.prefill_offloaded) = (true, false);
        self.manager.suspend(id, reason);
        self.requests.queue.push(sequence);
        true
    }

    /// Drops the KV of the last suspended request that matches `which`. Returns whether there was one.
    pub(super) fn drop_suspended_kv(&mut self, which: impl Fn(&MemoryManager, RequestId) -> bool) -> bool {
        self.requests.last_suspended(|id| which(&self.manager, id)).is_some_and(|id| self.drop_kv_of(id))
    }

    pub(super) fn drop_kv_of(&mut self, id: RequestId) -> bool {
        if !self.requests.queue.get(id).is_some_and(|sequence| sequence.kv_suspended) {
            return false;
        }
        let Some(sequence) = self.requests.queue.remove(id) else { return false };
        self.manager.close(id);
        self.requeue_for_recompute(sequence);
        true
    }
}

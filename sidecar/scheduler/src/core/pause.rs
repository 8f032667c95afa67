//! Pause-Resume (OrbitFlow 4.2): who is one too many waits with its KV instead of being computed again.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::planner::pausing::Candidate;

use super::Core;
use crate::sequence::Sequence;

impl Core {
    /// Pauses the request with most KV; never the oldest, and nobody who was paused for as long as a request may be. Returns
    /// whether there was one.
    pub(super) fn pause_largest(&mut self, now: Nanos) -> bool {
        let oldest = self.running.values().next().map(Sequence::id);
        let tbt_ns = self.brain.params().slo.tbt_ns;
        let column_bytes = self.brain.geometry().column_bytes();
        let candidate = |sequence: &Sequence| Candidate {
            id: sequence.id(),
            kv_bytes: u64::from(self.brain.columns(sequence.id())) * column_bytes,
            deposit: sequence.deposit(now, tbt_ns),
        };
        let candidates: Vec<_> = self.running.values().map(candidate).collect();
        let victims = self.pauses.victims(now, &candidates);
        let victim = victims.into_iter().find(|id| Some(*id) != oldest);
        victim.is_some_and(|id| self.pause(now, id))
    }

    /// Under a policy that pauses: it was paused for as long as a request may be.
    pub(super) fn is_immune(&self, now: Nanos, id: RequestId) -> bool {
        self.brain.params().pauses() && self.pauses.immune(id, now)
    }

    fn pause(&mut self, now: Nanos, id: RequestId) -> bool {
        let parked = self.park(id);
        if parked {
            self.pauses.pause(id, now);
            self.brain.note_pause();
            self.counters.pauses += 1;
        }
        parked
    }

    /// The request waits, with its KV.
    pub(super) fn park(&mut self, id: RequestId) -> bool {
        let Some(mut sequence) = self.take_running(id) else { return false };
        sequence.kept = true;
        self.brain.suspend(id);
        self.queue.push(sequence);
        true
    }

    /// The next in line was paused and does not go on yet: nobody goes past it.
    pub(super) fn front_is_paused(&self, now: Nanos) -> bool {
        let idle = self.running.is_empty();
        let front = self.queue.front().map(Sequence::id).filter(|id| self.pauses.is_paused(*id));
        front.is_some_and(|id| {
            let feasible = idle || self.brain.resume_fits(id);
            self.pauses.may_resume(id, now, feasible, idle).is_err()
        })
    }

    /// Requests that run again were paused no longer than until now.
    pub(super) fn note_resumed(&mut self, now: Nanos, admitted: &[RequestId]) {
        for id in admitted.iter().filter(|id| self.pauses.is_paused(**id)).copied().collect::<Vec<_>>() {
            self.pauses.resume(id, now);
        }
    }
}

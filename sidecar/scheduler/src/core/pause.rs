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

    /// It is paused, and should not be any more.
    pub(super) fn is_overdue(&self, now: Nanos, id: RequestId) -> bool {
        self.pauses.is_paused(id) && self.is_immune(now, id)
    }

    /// Who was paused for as long as a request may be is the next to go on, and has a row for it.
    pub(super) fn hurry_overdue(&mut self, now: Nanos) {
        let Some(id) = self.pauses.overdue(now).filter(|id| self.is_immune(now, *id)) else { return };
        if self.queue.front().is_some_and(|front| front.id() != id && !front.overdue) {
            self.queue.hurry(id);
        }
        if self.free_rows.is_empty() {
            self.take_one_out(now);
        }
    }

    /// Takes one of the running requests out of the way of others: paused, or else computed again. Neither the oldest nor one
    /// that may not be paused any more. `false` = there is none.
    pub(super) fn take_one_out(&mut self, now: Nanos) -> bool {
        if self.brain.pausing_helps() && self.pause_largest(now) {
            return true;
        }
        let spared = self.running.values().skip(1).all(|sequence| self.is_immune(now, sequence.id()));
        if !spared {
            self.preempt_youngest(now);
        }
        !spared
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
            let feasible = idle || self.is_overdue(now, id) || self.brain.resume_fits(id);
            self.pauses.may_resume(id, now, feasible, idle).is_err()
        })
    }

    /// Requests that run again were paused no longer than until now.
    pub(super) fn note_resumed(&mut self, now: Nanos, admitted: &[RequestId]) {
        for id in admitted.iter().filter(|id| self.pauses.is_paused(**id)).copied().collect::<Vec<_>>() {
            self.pauses.resume(id, now);
            if let Some(sequence) = self.places.get(&id).and_then(|place| self.running.get_mut(place)) {
                sequence.overdue = false;
            }
        }
    }
}

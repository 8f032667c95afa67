//! Implements the step boundary: plans the next step and carries the plan out.
//!
//! Planning reads and changes nothing. [`Scheduler::commit`] carries a plan out. If memory refuses it, the next plan
//! follows from the answer: a smaller one, or one that evicts something first. Only a plan that memory accepts opens KV.

use sluice_policy::ids::Nanos;

use super::Scheduler;
use super::commit::Committed;

impl Scheduler {
    /// Runs the step boundary; called whenever no step is in flight. Does nothing while memory is being remapped. With
    /// peers, memory also moves without an engine: an engine that exited maps nothing, so every required unmap is
    /// already done.
    pub(super) fn schedule(&mut self, now: Nanos) {
        let absent = self.engine.is_none() && self.negotiator.is_none();
        if absent || !self.manager.status().is_loaded() || self.manager.status().is_blocked() {
            return;
        }
        self.sleep_or_wake();
        let may_run = self.can_run(now) && self.engine.is_some();
        self.manager.boundary(now, &mut self.actions);
        self.negotiate(now);
        if self.quantum_expired {
            self.manager.loans_mut().on_borrow_denied();
        }
        self.make_host_room(now);
        if self.manager.status().is_blocked()
            || !may_run
            || self.manager.status().lacks_weights()
            || self.manager.status().is_spilling()
        {
            return;
        }
        self.arrange_requests(now);
        let kept = self.take_kept_plan();
        let mut plan = self.plan_step(now, kept);
        while let Committed::Refused(refusal) = self.commit(now, &plan) {
            plan = self.plan_again(now, plan, refusal);
        }
    }

    /// Pauses and orders requests before the step is planned. Each plan sees what the one before has changed.
    fn arrange_requests(&mut self, now: Nanos) {
        let pauses = self.plan_pauses(now);
        drop(self.manager.take_pauses());
        self.evict_all(now, &pauses);
        self.suspend_offloaded();
        self.queue.set_objectives(self.objectives());
        let on_hold = self.admission_on_hold();
        if !on_hold && let Some(overdue) = self.plan_overdue(now) {
            overdue.first.into_iter().for_each(|id| self.queue.move_to_front(id));
            self.evict_all(now, overdue.evict.as_slice());
        }
        self.defer_late(now);
        let pauses = if on_hold { Vec::new() } else { self.plan_row(now) };
        self.evict_all(now, &pauses);
    }
}

#[cfg(test)]
mod tests;

//! Implements the step boundary: plans the next step and carries the plan out.
//!
//! Planning reads and changes nothing. [`Scheduler::commit`] carries a plan out. If memory refuses it, the next plan
//! follows from the answer: a smaller one, or one that evicts something first. Only a plan that memory accepts opens
//! KV.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::LoanControl;

use super::Scheduler;
use super::commit::Committed;

impl Scheduler {
    /// Runs the step boundary; called whenever no step is in flight. Does nothing while memory is being remapped. With
    /// peers, memory also moves without an engine: an engine that exited maps nothing, so every required unmap is
    /// already done.
    pub(super) fn schedule(&mut self, now: Nanos) {
        let absent = self.engine.is_none() && self.loans.negotiator().is_none();
        if absent || !self.manager.status().is_loaded() || self.manager.status().is_blocked() {
            return;
        }
        self.sleep_or_wake(now);
        let may_run = self.update_slice(now) && self.engine.is_some();
        self.manager.boundary(now, &mut self.actions);
        self.negotiate(now);
        if self.slice.is_expired() {
            self.manager.loans_mut().on_borrow_denied();
        }
        if self.manager.status().is_blocked()
            || !may_run
            || self.manager.status().lacks_weights()
            || self.manager.status().is_spilling()
        {
            return;
        }
        self.arrange_requests(now);
        let kept = self.take_kept_plan(now);
        let mut plan = self.planner(now).plan_step(kept);
        while let Committed::Refused(refusal) = self.commit(now, &plan) {
            plan = self.planner(now).plan_again(plan, refusal);
        }
    }

    /// Pauses and orders requests before the step is planned. Each plan sees what the one before has changed.
    fn arrange_requests(&mut self, now: Nanos) {
        let pauses = self.planner(now).plan_pauses();
        self.evict_all(now, &pauses);
        self.refresh_offloaded();
        let computed = self.planner(now).plan_offloaded();
        self.evict_all(now, &computed);
        self.requests.queue.set_objectives(self.manager.params().deadlines());
        let on_hold = self.requests.are_on_hold(self.next_step);
        if !on_hold && let Some(overdue) = self.planner(now).plan_overdue() {
            overdue.first.into_iter().for_each(|id| self.requests.queue.move_to_front(id));
            self.evict_all(now, overdue.evict.as_slice());
        }
        self.defer_late(now);
        let pauses = if on_hold { Vec::new() } else { self.planner(now).plan_row() };
        self.evict_all(now, &pauses);
    }

    /// Requests whose prompt is no longer offloaded become ordinary ones.
    fn refresh_offloaded(&mut self) {
        for sequence in self.requests.running.iter_mut().filter(|sequence| sequence.prefill_offloaded) {
            sequence.prefill_offloaded = self.manager.kv_of(sequence.id()).is_prefill_offloaded();
            sequence.waiting_offloaded &= sequence.prefill_offloaded;
        }
    }

    /// Moves requests whose first token cannot be on time behind the others. Each is deferred once, by the pause limit.
    fn defer_late(&mut self, now: Nanos) {
        let params = self.manager.params();
        let (Some(slo), by_ns) = (params.deadlines(), params.pause_bound_ns) else { return };
        let token_ns = self.manager.timing().step_stats().prefill_token_ns();
        if by_ns > 0 {
            self.requests.queue.defer_front_while(by_ns, |one| one.is_late(now, token_ns, &slo));
        }
    }
}

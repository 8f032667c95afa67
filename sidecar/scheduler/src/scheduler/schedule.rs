//! Implements the step boundary: plans the next step, asks for its memory and carries the plan out.
//!
//! Planning reads and changes nothing ([`crate::step_plan`]). If memory refuses a plan, a smaller one follows, or one that
//! evicts something first. Only a plan that memory accepts opens KV.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{PrefillOffload, Prepared};
use sluice_policy::reclaim::PreemptionCandidate;

use super::Scheduler;
use super::limits::{ADMISSION_HOLD_STEPS, STARVED_BOUNDARIES_MAX};
use crate::batch::Batch;
use crate::event::{Finish, SchedulerOutput};
use crate::sequence::Sequence;
use crate::step_plan::{Eviction, PlanNotes, StepPlan};
use crate::step_request::StepRequest;

/// What follows from a refusal.
enum Refused {
    /// Another plan.
    Replan,
    /// Own layers are being remapped: the step waits.
    Wait,
    /// Nothing can be done for the oldest request.
    Starved,
}

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
        self.apply_plan_pauses(now);
        self.suspend_offloaded();
        self.order_waiting(now);
        let kept = self.take_kept_plan();
        let mut plan = self.plan_step(now, kept);
        self.record_notes(core::mem::take(&mut plan.notes));
        self.queue.number(plan.admit.iter().map(|one| one.id), &mut self.admissions);
        self.ask_plan(now, &plan);
        if let Some(plan) = self.find_memory(now, plan) {
            self.kept = None;
            self.commit_plan(now, plan);
        }
    }

    /// Plans the next step: the requests that it admits, as far as they are not `kept`, and how much it computes. Changes
    /// nothing.
    fn plan_step(&self, now: Nanos, kept: Option<StepPlan>) -> StepPlan {
        let mut plan = kept.unwrap_or_else(|| self.plan_admissions(now));
        let requests = self.step_requests(&plan);
        let fitting = self.fitting_tokens(now, &requests);
        let usual = self.config.max_step_tokens.min(fitting).min(self.tokens_beside_decodes(&requests));
        plan.limits.usual_tokens = usual;
        plan.limits.max_tokens = usual.max(self.whole_tokens(&plan, &requests).min(fitting));
        plan
    }

    /// Returns the requests of the step, those that it admits too, in the order of first admissions.
    pub(super) fn step_requests(&self, plan: &StepPlan) -> Vec<StepRequest<'_>> {
        let mut requests: Vec<_> = self.running.values().map(StepRequest::running).collect();
        for planned in &plan.admit {
            let Some(sequence) = self.queue.get(planned.id) else { continue };
            let committed = planned.prefix.as_ref().map_or(sequence.committed, |prefix| prefix.tokens());
            let offloaded = planned.prefill_offloaded;
            requests.push(StepRequest::admitted(sequence, committed, offloaded, self.next_step));
        }
        if !plan.admit.is_empty() {
            requests.sort_by_key(|request| request.admission.unwrap_or(u64::MAX));
        }
        requests
    }

    /// Returns the batch of the plan within its limits.
    fn plan_batch(&self, plan: &StepPlan) -> Batch {
        let requests = self.step_requests(plan);
        let alone = self.prefers_decodes(&requests);
        let taken = requests.into_iter().filter(|request| !alone || request.pending() == 1);
        let taken = taken.filter(|request| !plan.limits.prefills_wait || !request.prefill_offloaded);
        Batch::plan(taken, plan.limits.max_tokens)
    }

    /// Finds memory for a plan, or for a smaller one. If activations are short, the step has fewer tokens (a
    /// whole-prompt prefill first drops to the usual number). Then the newest admissions wait, then the running request
    /// that the policy ranks first is evicted. The oldest request is never a victim. Returns `None` while memory is
    /// moving or if no request can run.
    fn find_memory(&mut self, now: Nanos, mut plan: StepPlan) -> Option<StepPlan> {
        let mut rest: Option<StepPlan> = None;
        loop {
            self.refresh(&mut plan);
            plan.batch = self.plan_batch(&plan);
            if plan.batch.scheduled.is_empty() {
                return None;
            }
            match self.ask_memory(now, &plan) {
                Prepared::Ready => {
                    self.head_starved = 0;
                    return Some(plan);
                }
                Prepared::Wait => {
                    if !self.borrow_denied(now) {
                        self.keep_plan(&plan);
                        let rest =
                            rest.filter(|rest| rest.cache_epoch == self.manager.status().cache_epoch())?;
                        let ready = self.ask_memory(now, &rest) == Prepared::Ready;
                        self.head_starved = if ready { 0 } else { self.head_starved };
                        return ready.then_some(rest);
                    }
                }
                Prepared::Loading => {
                    plan.admit.retain(|one| !self.manager.kv_of(one.id).is_loading());
                    rest = self.without_loading(&plan);
                }
                Prepared::Short { missing_kv_blocks, activation } => {
                    let refused = self.revise(now, &mut plan, missing_kv_blocks, activation);
                    self.record_notes(core::mem::take(&mut plan.notes));
                    match refused {
                        Refused::Starved => {
                            self.fail_if_starved();
                            return None;
                        }
                        Refused::Wait => return None,
                        Refused::Replan => {}
                    }
                }
            }
        }
    }

    /// Drops admissions of requests that no longer wait as planned, and finds cached prefixes again if the cache has
    /// changed.
    pub(super) fn refresh(&self, plan: &mut StepPlan) {
        let suspended = |id| self.queue.get(id).map(|one| one.kv_suspended);
        plan.admit.retain(|one| suspended(one.id) == Some(one.prefix.is_none()));
        let epoch = self.manager.status().cache_epoch();
        if core::mem::replace(&mut plan.cache_epoch, epoch) == epoch {
            return;
        }
        for one in plan.admit.iter_mut().filter(|one| one.prefix.is_some()) {
            one.prefix = self.queue.get(one.id).map(|waiting| self.cached_prefix(waiting));
        }
    }

    /// Asks for the memory of a plan.
    fn ask_memory(&mut self, now: Nanos, plan: &StepPlan) -> Prepared {
        let need = plan.batch.need(plan.admissions(), |id| self.held_kv_blocks(plan, id));
        self.manager.prepare(now, &need, &mut self.actions)
    }

    /// Returns the KV blocks that the request holds, or finds in the cache when it is admitted.
    fn held_kv_blocks(&self, plan: &StepPlan, id: RequestId) -> u32 {
        plan.cached_kv_blocks(id).unwrap_or_else(|| self.manager.kv_of(id).kv_blocks())
    }

    /// Returns the plan of the step that was refused, without the requests whose KV is loading; memory was available for
    /// all of it.
    fn without_loading(&self, plan: &StepPlan) -> Option<StepPlan> {
        let mut rest = plan.clone();
        rest.batch.scheduled.retain(|part| {
            rest.admit.iter().any(|one| one.id == part.request) || self.is_running(part.request)
        });
        (!rest.batch.scheduled.is_empty()).then_some(rest)
    }

    /// Returns the tokens of a step that takes whole prompts through each layer while weights load, as far as their
    /// activations fit. Returns 0 if no weights are loading.
    fn whole_tokens(&self, plan: &StepPlan, requests: &[StepRequest<'_>]) -> u32 {
        if !self.manager.timing().weights_loading() {
            return 0;
        }
        let all = Batch::plan(requests.iter().copied(), self.config.max_model_tokens);
        let need = all.need(plan.admissions(), |id| self.held_kv_blocks(plan, id));
        self.manager.timing().whole_prompt_tokens(&need)
    }

    /// Makes the plan smaller after memory refused it, or evicts something for it.
    fn revise(
        &mut self,
        now: Nanos,
        plan: &mut StepPlan,
        missing_kv_blocks: u32,
        activation: bool,
    ) -> Refused {
        plan.limits.keeps_layers = activation;
        if !self.plan_smaller(now, plan, missing_kv_blocks, activation) {
            return Refused::Starved;
        }
        if let Some(stalling) = plan.take_remap() {
            if self.manager.apply_stalling_remap(stalling, &mut self.actions) {
                return Refused::Wait;
            }
            plan.limits.keeps_layers = true;
            if !self.plan_smaller(now, plan, missing_kv_blocks, activation) {
                return Refused::Starved;
            }
        }
        core::mem::take(&mut plan.evict).into_iter().for_each(|eviction| self.evict(now, eviction));
        Refused::Replan
    }

    /// Plans less after memory refused this plan, or an eviction. Changes only the plan. Returns false if nothing is left
    /// to try.
    fn plan_smaller(
        &self,
        now: Nanos,
        plan: &mut StepPlan,
        missing_kv_blocks: u32,
        activation: bool,
    ) -> bool {
        let limits = &mut plan.limits;
        if activation && limits.max_tokens > limits.usual_tokens {
            limits.max_tokens = limits.usual_tokens;
            return true;
        }
        if activation && limits.max_tokens > 1 {
            limits.max_tokens /= 2;
            return true;
        }
        if !activation && plan.admit.len() > limits.sure {
            plan.admit.truncate(limits.sure + (plan.admit.len() - limits.sure) / 2);
            plan.notes.refused_burst = true;
            return true;
        }
        if !limits.has_made_room {
            plan.evict = self.plan_room(now, missing_kv_blocks, plan);
            plan.limits.has_made_room = !plan.evict.is_empty();
            if plan.limits.has_made_room {
                return true;
            }
        }
        let requests = self.step_requests(plan);
        if !plan.limits.prefills_wait && can_defer_prefills(plan, &requests) {
            plan.limits.prefills_wait = true;
            return true;
        }
        if let Some(stalling) = self.plan_stalling_remap(now, missing_kv_blocks, plan) {
            plan.evict = vec![Eviction::Remap(stalling)];
            return true;
        }
        self.plan_one_fewer(now, plan)
    }

    /// Plans the step without one of its requests. Returns false if only the oldest is left.
    fn plan_one_fewer(&self, now: Nanos, plan: &mut StepPlan) -> bool {
        let requests = self.step_requests(plan);
        if requests.len() <= 1 {
            // An offloaded prompt can also lack only space in the host tier.
            let prompt_offloaded = requests.iter().any(|one| one.prefill_offloaded);
            let dropped = self.last_suspended(|id| {
                !plan.admits(id) && (prompt_offloaded || self.manager.kv_of(id).on_device())
            });
            plan.evict.extend(dropped.map(Eviction::DropSuspended));
            return dropped.is_some();
        }
        match plan.admit.iter().rposition(|one| !self.is_overdue(now, one.id)) {
            Some(at) => {
                let offload = self.offload_of_admitted(plan, at);
                plan.notes.memory.probes_link |= offload == PrefillOffload::LinkTooSlow;
                if offload == PrefillOffload::Fits {
                    plan.admit[at].prefill_offloaded = true;
                } else {
                    plan.admit.remove(at);
                    plan.notes.refused_admission = true;
                }
            }
            None if !self.all_immune(now, &requests) => plan.evict.extend(self.choose_victim(now, plan)),
            None => {
                plan.notes.refused_admission = plan.admit.pop().is_some();
                if !plan.notes.refused_admission {
                    plan.evict.extend(self.preemption_victim(now, &requests).map(Eviction::Preempt));
                }
            }
        }
        true
    }

    /// Records what planning found.
    fn record_notes(&mut self, notes: PlanNotes) {
        self.manager.note(&notes.memory);
        if notes.refused_admission {
            self.admission_backoff_until = self.next_step + ADMISSION_HOLD_STEPS;
        }
        if notes.refused_burst {
            self.burst_backoff_until = self.next_step + ADMISSION_HOLD_STEPS;
        }
    }

    /// Returns the request to preempt: the lowest priority, then the highest rank of the policy. Requests at the pause
    /// limit are last, and the oldest request of the step is none.
    pub(super) fn preemption_victim(&self, now: Nanos, requests: &[StepRequest<'_>]) -> Option<RequestId> {
        let policy = self.manager.params().policy();
        let key = |one: &&StepRequest<'_>| {
            let admission = one.admission.unwrap_or(u64::MAX);
            let candidate =
                PreemptionCandidate { admission, kv_blocks: self.manager.kv_of(one.id()).kv_blocks() };
            let rank = policy.preemption_rank(&candidate);
            (self.is_immune(now, one.id()), one.request.priority, core::cmp::Reverse(rank))
        };
        requests.iter().skip(1).filter(|one| !one.is_admitted).min_by_key(key).map(|one| one.id())
    }

    /// Preempts a running request: it waits and is recomputed from the same tokens.
    pub(super) fn preempt(&mut self, id: RequestId) {
        if let Some(sequence) = self.remove_running(id) {
            self.requeue_for_recompute(sequence);
        }
    }

    /// Queues a request whose memory was freed for recomputation.
    pub(super) fn requeue_for_recompute(&mut self, mut sequence: Sequence) {
        let dropped_tokens = sequence.preempt();
        self.counters.preemptions += 1;
        self.outputs.push(SchedulerOutput::Preempted { request: sequence.id(), dropped_tokens });
        self.queue.push(sequence);
    }

    /// Counts a boundary at which the oldest request alone does not fit. Its memory is guaranteed, so only a failing
    /// backend causes this; after [`STARVED_BOUNDARIES_MAX`] boundaries the request fails.
    fn fail_if_starved(&mut self) {
        self.head_starved += 1;
        if self.head_starved < STARVED_BOUNDARIES_MAX {
            return;
        }
        self.head_starved = 0;
        if let Some(id) = self.running.values().next().map(Sequence::id) {
            self.end(id, Finish::Failed("the device did not provide the guaranteed memory".into()));
        }
    }
}

/// Whether the step can run without offloaded prefills that began earlier. They continue when a chunk of them fits.
fn can_defer_prefills(plan: &StepPlan, requests: &[StepRequest<'_>]) -> bool {
    let is_offloaded = |id: RequestId| requests.iter().any(|one| one.id() == id && one.prefill_offloaded);
    plan.admit.is_empty()
        && plan.batch.scheduled.iter().any(|part| is_offloaded(part.request))
        && plan.batch.scheduled.iter().any(|part| !is_offloaded(part.request))
}

#[cfg(test)]
mod tests;

//! Plans the next step, and plans it again after memory refused it. Changes nothing.

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::PrefillOffload;

use super::Planner;
use crate::batch::Batch;
use crate::scheduler::commit::Refusal;
use crate::step_plan::{Eviction, PlanNotes, StepPlan};
use crate::step_request::{StepRequest, decodes};

impl<'a> Planner<'a> {
    /// Plans the next step: the requests that it admits, as far as they are not `kept`, and what it computes.
    pub(in crate::scheduler) fn plan_step(&self, kept: Option<StepPlan>) -> StepPlan {
        let mut plan = kept.unwrap_or_else(|| self.plan_admissions());
        // `plan_pauses` came before.
        plan.notes.memory.pauses_are_made = true;
        let requests = self.step_requests(&plan);
        let fitting = self.slice.fitting_tokens(self.now, decodes(&requests), self.manager.timing());
        let usual = self.config.max_step_tokens.min(fitting).min(self.tokens_beside_decodes(&requests));
        plan.limits.usual_tokens = usual;
        plan.limits.max_tokens = usual.max(self.whole_tokens(&plan, &requests).min(fitting));
        plan.batch = self.plan_batch(&plan);
        plan.placement = self.plan_placement(&plan);
        plan
    }

    /// Plans the step again after the plan was refused: with what is there now, or less, or with an eviction before.
    pub(in crate::scheduler) fn plan_again(&self, plan: StepPlan, refusal: Refusal) -> StepPlan {
        let mut plan = StepPlan { evict: Vec::new(), notes: PlanNotes::default(), placement: None, ..plan };
        // First: a prefix may name cache that was evicted since.
        self.refresh(&mut plan);
        match refusal {
            Refusal::Changed => {}
            Refusal::Loading => {
                plan.admit.retain(|one| !self.manager.kv_of(one.id).is_loading());
                plan.fallback = self.without_loading(&plan).map(Box::new);
            }
            Refusal::Short { missing_kv_blocks, activation } => {
                plan.limits.keeps_layers = activation;
                plan.is_starved = !self.plan_smaller(&mut plan, missing_kv_blocks, activation);
            }
            Refusal::LayersStay { missing_kv_blocks } => {
                plan.limits.keeps_layers = true;
                plan.is_starved = !self.plan_smaller(&mut plan, missing_kv_blocks, false);
            }
        }
        if !plan.is_starved && !plan.moves_layers() {
            self.refresh(&mut plan);
            plan.batch = self.plan_batch(&plan);
        }
        plan
    }

    /// Returns the batch of the plan within its limits.
    fn plan_batch(&self, plan: &StepPlan) -> Batch {
        let requests = self.step_requests(plan);
        let measures = decodes(&requests) > 0 && !self.manager.status().weights_loading();
        let alone = measures && self.slice.prefers_decodes(self.step, self.manager.timing());
        let taken = requests.into_iter().filter(|request| !alone || request.pending() == 1);
        let taken = taken.filter(|request| !plan.limits.prefills_wait || !request.prefill_offloaded);
        Batch::plan(taken, plan.limits.max_tokens)
    }

    /// Drops admissions of requests that no longer wait as planned, and finds cached prefixes again if the cache has
    /// changed.
    pub(in crate::scheduler) fn refresh(&self, plan: &mut StepPlan) {
        let suspended = |id| self.requests.queue.get(id).map(|one| one.kv_suspended);
        plan.admit.retain(|one| suspended(one.id) == Some(one.prefix.is_none()));
        let epoch = self.manager.status().cache_epoch();
        if core::mem::replace(&mut plan.cache_epoch, epoch) != epoch {
            for one in plan.admit.iter_mut().filter(|one| one.prefix.is_some()) {
                one.prefix = self.requests.queue.get(one.id).map(|waiting| self.cached_prefix(waiting));
            }
        }
        plan.add_up(self.manager);
    }

    /// Returns the step that was refused without the requests whose KV is loading; memory was available for all of it.
    fn without_loading(&self, plan: &StepPlan) -> Option<StepPlan> {
        let has_kv = |id| plan.admits(id) || self.requests.running.contains(id);
        let batch = plan.batch.without(|id| !has_kv(id));
        let admit = plan.admit.clone();
        let cache_epoch = plan.cache_epoch;
        (!batch.scheduled.is_empty()).then(|| StepPlan { admit, batch, cache_epoch, ..StepPlan::default() })
    }

    /// Returns the tokens of a step that takes whole prompts through each layer while weights load, as far as their
    /// activations fit. Returns 0 if no weights are loading.
    fn whole_tokens(&self, plan: &StepPlan, requests: &[StepRequest<'_>]) -> u32 {
        if !self.manager.status().weights_loading() {
            return 0;
        }
        let all = Batch::plan(requests.iter().copied(), self.config.max_model_tokens);
        let need = all.need(plan.admissions(), |id| self.held_kv_blocks(plan, id));
        self.manager.whole_prompt_tokens(&need)
    }

    /// Plans less after memory refused this plan, or an eviction. If activations are short, the step has fewer tokens
    /// (a whole-prompt prefill first drops to the usual number). Then the newest admissions wait, then the running
    /// request that the policy ranks first is evicted. The oldest request is never a victim. Returns false if nothing
    /// is left to try.
    fn plan_smaller(&self, plan: &mut StepPlan, missing_kv_blocks: u32, activation: bool) -> bool {
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
            plan.notes.refused_extra = true;
            return true;
        }
        if !limits.has_made_room {
            plan.evict = self.plan_room(missing_kv_blocks, plan);
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
        if let Some(stalling) = self.plan_stalling_remap(missing_kv_blocks, plan) {
            plan.evict = vec![Eviction::Remap { stalling, missing_kv_blocks }];
            return true;
        }
        self.plan_one_fewer(plan)
    }

    /// Plans the step without one of its requests. Returns false if only the oldest is left.
    fn plan_one_fewer(&self, plan: &mut StepPlan) -> bool {
        let requests = self.step_requests(plan);
        if requests.len() <= 1 {
            // An offloaded prompt can also lack only space in the host tier.
            let prompt_offloaded = requests.iter().any(|one| one.prefill_offloaded);
            let dropped = self.requests.last_suspended(|id| {
                !plan.admits(id) && (prompt_offloaded || self.manager.kv_of(id).on_device())
            });
            plan.evict.extend(dropped.map(Eviction::DropSuspended));
            return dropped.is_some();
        }
        match plan.admit.iter().rposition(|one| !self.is_overdue(one.id)) {
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
            None if !self.all_immune(&requests) => plan.evict.extend(self.choose_victim(plan)),
            None => {
                plan.notes.refused_admission = plan.admit.pop().is_some();
                if !plan.notes.refused_admission {
                    plan.evict.extend(self.preemption_victim(&requests).map(Eviction::Preempt));
                }
            }
        }
        true
    }
}

/// Whether the step can run without offloaded prefills that began earlier. They continue when a chunk of them fits.
fn can_defer_prefills(plan: &StepPlan, requests: &[StepRequest<'_>]) -> bool {
    let is_offloaded = |id: RequestId| requests.iter().any(|one| one.id() == id && one.prefill_offloaded);
    plan.admit.is_empty()
        && plan.batch.scheduled.iter().any(|part| is_offloaded(part.request))
        && plan.batch.scheduled.iter().any(|part| !is_offloaded(part.request))
}

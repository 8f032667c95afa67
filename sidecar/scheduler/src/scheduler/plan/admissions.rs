//! Plans which waiting requests the next step admits.

use sluice_policy::memory_manager::{MemoryNotes, PlanAdmission, PlannedAdmissions};

use super::Planner;
use crate::sequence::Sequence;
use crate::step_plan::{PlanNotes, PlannedAdmission, StepPlan};

/// Admissions that are being planned.
pub(super) struct Admissions {
    pub list: Vec<PlannedAdmission>,
    pub notes: PlanNotes,
    /// Their sum, as the memory manager sees it.
    pub planned: PlannedAdmissions,
    /// Tokens that the running requests and these have pending.
    pub pending_tokens: u32,
    /// Admissions for which running requests may be paused.
    sure: usize,
    /// Tokens that the step may still take.
    pub budget: u32,
}

impl Planner<'_> {
    /// Plans the admissions of the next step, up to one step's worth of tokens.
    pub(in crate::scheduler) fn plan_admissions(&self) -> StepPlan {
        let by_deadline = self.objectives().is_some();
        let mut admissions = Admissions {
            list: Vec::new(),
            notes: PlanNotes {
                memory: MemoryNotes { blocked_head: Some(None), ..MemoryNotes::default() },
                ..PlanNotes::default()
            },
            planned: PlannedAdmissions::default(),
            pending_tokens: self.requests.running.pending_tokens(),
            sure: usize::MAX,
            budget: self.admission_budget(),
        };
        if by_deadline || !self.requests.are_on_hold(self.step) {
            self.plan_first(by_deadline, &mut admissions);
            self.plan_offloaded_prefills(&mut admissions);
        }
        let Admissions { list: admit, notes, planned, .. } = admissions;
        let mut plan = StepPlan { admit, notes, planned, ..StepPlan::default() };
        plan.limits.sure = admissions.sure;
        plan.lacked_kv = self.manager.status().lacks_kv();
        plan.cache_epoch = self.manager.status().cache_epoch();
        plan
    }

    /// Plans the first waiting requests, until one of them must wait.
    fn plan_first(&self, by_deadline: bool, admissions: &mut Admissions) {
        for front in self.requests.queue.iter() {
            if admissions.budget == 0
                || !(admissions.sure == usize::MAX || self.may_admit_extra(front))
                || self.requests.running.free_rows() == admissions.list.len()
                || self.must_wait(front, admissions)
            {
                return;
            }
            if by_deadline && admissions.sure == usize::MAX && !self.fits(front, admissions) {
                admissions.sure = admissions.list.len() + 1;
            }
            let waiter = self.waiter(front, 0);
            let layer_blocks = self.manager.after(&admissions.planned).layer_blocks_needed(&waiter);
            let offloaded = self.starts_offloaded(front, &admissions.planned);
            self.plan_admission(front, layer_blocks, offloaded, admissions);
        }
    }

    /// Whether this request may be tried after a request that did not fit. Not a suspended request: admitting one needs
    /// all its KV at once, and a failure would swap it straight back out.
    fn may_admit_extra(&self, front: &Sequence) -> bool {
        !self.requests.hold.holds_extra(self.step) && !front.kv_suspended
    }

    /// Whether the first waiting request waits: its KV is loading, it may not resume yet, or no plan admits it. No
    /// request overtakes it.
    fn must_wait(&self, front: &Sequence, admissions: &mut Admissions) -> bool {
        let id = front.id();
        if self.manager.kv_of(id).is_loading() {
            return true;
        }
        if self.objectives().is_some() {
            return self.can_defer(front, admissions);
        }
        let idle = self.requests.running.is_empty() && admissions.list.is_empty();
        let feasible = idle || self.is_overdue(id) || self.is_feasible(front, admissions);
        if !feasible && self.manager.offload_view().admits_by_plan() {
            admissions.notes.memory.blocked_head = Some(Some(id));
        }
        match self.requests.pauses.is_paused(id) {
            true => self.requests.pauses.can_resume(id, self.now, feasible, idle).is_err(),
            false => !feasible,
        }
    }

    /// Whether the policy lets a waiting request run next to the others.
    fn is_feasible(&self, front: &Sequence, admissions: &mut Admissions) -> bool {
        let memory = self.manager.after(&admissions.planned);
        if self.manager.offload_view().admits_by_plan() {
            let waiter = self.waiter(front, self.manager.params().slo.tbt_ns);
            let Some(answer) = memory.plan_admission(&waiter) else {
                return memory.has_room(&waiter);
            };
            if answer != PlanAdmission::AfterPlacement {
                admissions.notes.memory.skips_early_fetches = Some(answer == PlanAdmission::AfterFetches);
            }
            return answer == PlanAdmission::Now;
        }
        if front.waiting_offloaded {
            return memory.can_onload(front.id(), admissions.pending_tokens)
                && self.leaves_prefill_buffer(front, admissions);
        }
        if self.requests.pauses.is_paused(front.id()) {
            return memory.resume_fits(front.id());
        }
        self.leaves_prefill_buffer(front, admissions)
    }
}

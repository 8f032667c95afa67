//! Implements Pause-Resume (OrbitFlow 4.2): excess requests wait with their KV instead of being recomputed. It also
//! builds the placement planner's view of the requests and plans the pauses of an adopted plan.

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{RunningRequest, SchedulerView, WaitingRequest};

use super::Planner;
use crate::sequence::Sequence;
use crate::step_plan::{Eviction, StepPlan};
use crate::step_request::StepRequest;

/// Waiting requests that a plan considers: it is rare that more are admitted at once.
const MAX_WAITING: usize = 4;

/// What is done for a request that reached the pause limit.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::scheduler) struct Overdue {
    /// The request, if it is not the first one that waits.
    pub first: Option<RequestId>,
    /// What makes space for it.
    pub evict: Option<Eviction>,
}

impl Planner<'_> {
    /// Returns the requests of the step and the first waiting ones if a placement plan for them is due.
    pub(super) fn plan_placement(&self, plan: &StepPlan) -> Option<SchedulerView> {
        let is_due = self.manager.after(&plan.planned).wants_plan(&plan.notes.memory);
        is_due.then(|| self.scheduler_view(plan))
    }

    fn scheduler_view(&self, plan: &StepPlan) -> SchedulerView {
        let by_plan = self.manager.offload_view().can_pause_help() && self.objectives().is_none();
        let requests = self.step_requests(plan);
        let victims = if by_plan { self.victims(&requests) } else { Vec::new() };
        let tbt_ns = self.manager.params().slo.tbt_ns;
        let running = |one: &StepRequest<'_>, immune: bool| RunningRequest {
            request: one.id(),
            kv_blocks: one.next_kv_blocks(),
            deposit: one.deposit(self.now, tbt_ns),
            immune,
        };
        let find = |id: &RequestId| requests.iter().find(|one| one.id() == *id);
        let first = victims.iter().filter_map(find).map(|one| running(one, false));
        let others = requests.iter().filter(|one| !victims.contains(&one.id())).map(|one| running(one, true));
        SchedulerView { running: first.chain(others).collect(), waiting: self.waiters(tbt_ns, plan) }
    }

    /// Returns the waiting requests that a placement plan may admit: as many as there are free rows, none while
    /// admission is on hold.
    fn waiters(&self, tbt_ns: u64, plan: &StepPlan) -> Vec<WaitingRequest> {
        if !self.manager.offload_view().admits_by_plan() || self.requests.are_on_hold(self.step) {
            return Vec::new();
        }
        let can_plan = |sequence: &&Sequence| {
            let id = sequence.id();
            !self.requests.pauses.is_paused(id)
                || self.requests.pauses.can_resume(id, self.now, true, false).is_ok()
        };
        let rows = self.requests.running.free_rows() - plan.admit.len();
        let others = self.requests.queue.iter().filter(|one| !plan.admits(one.id()));
        let first = others.take(MAX_WAITING.min(rows)).take_while(can_plan);
        let memory = self.manager.after(&plan.planned);
        let mut planned_layer_blocks = 0;
        let can_admit = |one: &WaitingRequest| {
            let allowed = memory.may_plan_admission(one, planned_layer_blocks);
            planned_layer_blocks += memory.layer_blocks_needed(one);
            allowed
        };
        first.map(|one| self.waiter(one, tbt_ns)).take_while(can_admit).collect()
    }

    /// Plans the pauses of the adopted placement plan, of requests that may still be paused.
    pub(in crate::scheduler) fn plan_pauses(&self) -> Vec<Eviction> {
        let planned = self.manager.offload_view().pauses();
        if planned.is_empty() {
            return Vec::new();
        }
        let victims = self.victims(&self.step_requests(&StepPlan::default()));
        planned.iter().filter(|id| victims.contains(id)).copied().map(Eviction::pause).collect()
    }

    /// Plans that a request that reached the pause limit goes first, and that a running one makes space for it if no
    /// row is free. The oldest request and requests at the pause limit are exempt.
    pub(in crate::scheduler) fn plan_overdue(&self) -> Option<Overdue> {
        let id = self.requests.pauses.overdue(self.now).filter(|id| self.is_immune(*id))?;
        let front = self.requests.queue.front().filter(|front| front.id() != id && !front.is_overdue);
        let plan = StepPlan::default();
        let must_evict =
            self.requests.running.free_rows() == 0 && !self.all_immune(&self.step_requests(&plan));
        let evict = must_evict.then(|| self.choose_victim(&plan)).flatten();
        Some(Overdue { first: front.map(|_| id), evict })
    }
}

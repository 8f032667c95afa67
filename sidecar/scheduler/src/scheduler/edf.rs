//! Orders admissions and pauses by token deadlines (`Unified`): [`sluice_policy::planner::deadline`].

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::Slo;
use sluice_policy::planner::deadline::{self, Holder, RoomRequest};

use super::Scheduler;
use super::admit::Admissions;
use crate::sequence::Sequence;
use crate::step_plan::{Eviction, StepPlan};
use crate::step_request::StepRequest;

impl Scheduler {
    /// Returns the objectives for deadline scheduling; `None` under other policies.
    pub(super) fn objectives(&self) -> Option<Slo> {
        self.manager.params().deadlines()
    }

    /// Orders the wait queue by the policy in force. Returns whether that is by deadline.
    pub(super) fn order_queue(&mut self) -> bool {
        let objectives = self.objectives();
        self.queue.set_objectives(objectives);
        objectives.is_some()
    }

    /// Moves requests whose first token cannot be on time behind the others. Each is deferred once, by the pause limit.
    pub(super) fn demote_late(&mut self, now: Nanos) {
        let (Some(slo), by_ns) = (self.objectives(), self.manager.params().pause_bound_ns) else { return };
        let token_ns = self.manager.timing().step_stats().prefill_token_ns();
        let is_late = |one: &&Sequence| {
            let ready = now.plus(token_ns.saturating_mul(u64::from(one.pending())));
            one.first_token.is_none() && one.deferred_ns == 0 && ready > one.deadline(&slo)
        };
        while by_ns > 0 && self.queue.front().filter(is_late).is_some() {
            let Some(mut late) = self.queue.pop() else { return };
            late.deferred_ns = by_ns;
            self.queue.push(late);
        }
    }

    /// Whether a waiting request fits next to the running requests and the planned admissions.
    pub(super) fn fits(&self, now: Nanos, front: &Sequence, admissions: &Admissions) -> bool {
        let memory = self.manager.after(&admissions.planned);
        let needed = memory.layer_blocks_needed(&self.waiter(front, now, 0));
        memory.fits_with_running(needed + admissions.planned.layer_blocks())
    }

    /// Whether the first waiting request waits: it does not fit, and either it is paused with enough buffered tokens or
    /// memory refused an admission a short time ago.
    pub(super) fn can_defer(&self, now: Nanos, front: &Sequence, admissions: &Admissions) -> bool {
        let is_buffered = front.kv_suspended && front.buffered_until(now) > self.margin_after(now);
        let alone = self.running.is_empty() && admissions.list.is_empty();
        let in_backoff = self.next_step < self.admission_backoff_until;
        (is_buffered || in_backoff) && !alone && !self.fits(now, front, admissions)
    }

    /// Plans pauses of the requests with the most buffered tokens for the last request that the plan admits. None if no
    /// request can be paused.
    pub(super) fn plan_room(&self, now: Nanos, kv_blocks: u32, plan: &StepPlan) -> Vec<Eviction> {
        let admitted = plan.admit.last().and_then(|last| self.queue.get(last.id));
        let Some((slo, admitted)) = self.objectives().zip(admitted) else { return Vec::new() };
        self.plan_pauses(now, kv_blocks, (admitted.deadline(&slo), admitted.request.priority), plan)
    }

    /// Pauses a request for the queue head if all rows are taken.
    pub(super) fn make_row(&mut self, now: Nanos) {
        if let Some((slo, front)) = self.objectives().zip(self.queue.front())
            && self.free_rows.is_empty()
            && !self.admission_on_hold()
        {
            let urgency = (front.deadline(&slo), front.request.priority);
            let pauses = self.plan_pauses(now, 1, urgency, &StepPlan::default());
            pauses.into_iter().for_each(|eviction| self.evict(now, eviction));
        }
    }

    fn plan_pauses(
        &self,
        now: Nanos,
        kv_blocks: u32,
        (deadline, priority): (Nanos, i32),
        plan: &StepPlan,
    ) -> Vec<Eviction> {
        if !self.manager.offload_view().can_free_by_pause(kv_blocks)
            || self.manager.timing().cost_window_ns() == 0
        {
            return Vec::new();
        }
        let wanted = RoomRequest {
            kv_blocks,
            buffered_until: self.margin_after(deadline.max(now)),
            priority,
            host_places: self.manager.after(&plan.planned(&self.manager)).host_capacity_blocks(),
        };
        let pauses = deadline::make_room(&wanted, &self.holders(now, &self.step_requests(plan)));
        pauses.unwrap_or_default().into_iter().map(Eviction::Pause).collect()
    }

    /// Returns the running request with the most buffered tokens among those that may be paused and fit into the host
    /// tier.
    pub(super) fn latest_deadline(
        &self,
        now: Nanos,
        requests: &[StepRequest<'_>],
        host_places: u32,
    ) -> Option<RequestId> {
        let wanted = RoomRequest { kv_blocks: 1, buffered_until: Nanos(0), priority: i32::MAX, host_places };
        deadline::make_room(&wanted, &self.holders(now, requests))?.first().copied()
    }

    /// Returns the running requests that may be paused.
    fn holders(&self, now: Nanos, requests: &[StepRequest<'_>]) -> Vec<Holder> {
        let holder = |id: RequestId| {
            let sequence = self.running_request(id)?;
            Some(Holder {
                id,
                buffered_until: sequence.buffered_until(now),
                priority: sequence.request.priority,
                kv_blocks: self.manager.kv_of(id).exclusive_kv_blocks(),
            })
        };
        self.victims(now, requests).into_iter().filter_map(holder).collect()
    }

    /// Returns the time from which a difference of deadlines justifies a pause.
    fn margin_after(&self, at: Nanos) -> Nanos {
        at.plus(self.manager.timing().cost_window_ns())
    }
}

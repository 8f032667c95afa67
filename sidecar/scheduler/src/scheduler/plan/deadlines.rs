//! Orders admissions and pauses by token deadlines (`Unified`): [`sluice_policy::placement_planner::deadline`].

use sluice_policy::ids::Nanos;
use sluice_policy::placement_planner::deadline::{self, RoomRequest};

use super::Planner;
use super::admissions::Admissions;
use crate::sequence::Sequence;
use crate::step_plan::{Eviction, StepPlan};

impl Planner<'_> {
    /// Whether a waiting request fits next to the running requests and the planned admissions.
    pub(super) fn fits(&self, front: &Sequence, admissions: &Admissions) -> bool {
        let memory = self.manager.after(&admissions.planned);
        let needed = memory.layer_blocks_needed(&self.waiter(front, 0));
        memory.fits_with_running(needed + admissions.planned.layer_blocks())
    }

    /// Whether the first waiting request waits: it does not fit, and either it is paused with enough buffered tokens or
    /// memory refused an admission a short time ago.
    pub(super) fn can_defer(&self, front: &Sequence, admissions: &Admissions) -> bool {
        let is_buffered = front.kv_suspended && front.buffered_until(self.now) > self.margin_after(self.now);
        let alone = self.requests.running.is_empty() && admissions.list.is_empty();
        let on_hold = self.requests.hold.holds(self.step, alone);
        (is_buffered && !alone || on_hold) && !self.fits(front, admissions)
    }

    /// Plans pauses of the requests with the most buffered tokens for the last request that the plan admits. None if no
    /// request can be paused.
    pub(super) fn plan_room(&self, kv_blocks: u32, plan: &StepPlan) -> Vec<Eviction> {
        let admitted = plan.admit.last().and_then(|last| self.requests.queue.get(last.id));
        let Some((slo, admitted)) = self.objectives().zip(admitted) else { return Vec::new() };
        self.pauses_for(kv_blocks, (admitted.deadline(&slo), admitted.request.priority), plan)
    }

    /// Plans a pause for the queue head if all rows are taken.
    pub(in crate::scheduler) fn plan_row(&self) -> Vec<Eviction> {
        let Some((slo, front)) = self.objectives().zip(self.requests.queue.front()) else {
            return Vec::new();
        };
        if self.requests.running.free_rows() > 0 || self.admission_budget() == 0 {
            return Vec::new();
        }
        self.pauses_for(1, (front.deadline(&slo), front.request.priority), &StepPlan::default())
    }

    fn pauses_for(
        &self,
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
            buffered_until: self.margin_after(deadline.max(self.now)),
            priority,
            host_places: self.manager.after(&plan.planned).host_capacity_blocks(),
        };
        let pauses = deadline::make_room(&wanted, &self.holders(&self.step_requests(plan)));
        pauses.unwrap_or_default().into_iter().map(Eviction::pause).collect()
    }

    /// Returns the time from which a difference of deadlines justifies a pause.
    fn margin_after(&self, at: Nanos) -> Nanos {
        at.plus(self.manager.timing().cost_window_ns())
    }
}

//! Orders admissions and pauses by token deadlines (`Unified`): [`sluice_policy::planner::deadline`].

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::Slo;
use sluice_policy::planner::deadline::{self, Holder, RoomRequest};

use super::Scheduler;
use crate::sequence::Sequence;

impl Scheduler {
    /// Returns the objectives for deadline scheduling; `None` under other policies.
    pub(super) fn objectives(&self) -> Option<Slo> {
        let params = self.manager.params();
        params.serves_by_deadline().then_some(params.slo)
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
        let token_ns = self.manager.step_stats().prefill_token_ns();
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

    /// Whether the queue head fits next to the running requests and the requests being admitted at this boundary.
    pub(super) fn head_fits(&self, now: Nanos, coming_layer_blocks: u32) -> bool {
        let layer_blocks = |front| self.layer_blocks_needed(now, front) + coming_layer_blocks;
        self.queue.front().is_none_or(|front| self.manager.fits_with_running(layer_blocks(front)))
    }

    /// Whether the queue head waits: it does not fit, and either it is paused with enough buffered tokens or memory
    /// refused an admission a short time ago.
    pub(super) fn can_defer_head(&self, now: Nanos, coming_layer_blocks: u32) -> bool {
        let in_store =
            |front: &Sequence| front.kv_suspended && front.buffered_until(now) > self.is_well_after(now);
        let in_store = self.queue.front().is_some_and(in_store);
        (in_store || self.admission_on_hold())
            && !self.running.is_empty()
            && !self.head_fits(now, coming_layer_blocks)
    }

    /// Pauses the requests with the most buffered tokens for the most recently admitted request. Returns false if none
    /// can be paused.
    pub(super) fn make_room(&mut self, now: Nanos, kv_blocks: u32, admitted: &[RequestId]) -> bool {
        let coming = admitted.last().and_then(|last| self.running_request(*last));
        let Some((slo, coming)) = self.objectives().zip(coming) else { return false };
        let (deadline, priority) = (coming.deadline(&slo), coming.request.priority);
        self.pause_for(now, kv_blocks, (deadline, priority), admitted)
    }

    /// Pauses a request for the queue head if all rows are taken.
    pub(super) fn make_row(&mut self, now: Nanos) {
        if let Some((slo, front)) = self.objectives().zip(self.queue.front())
            && self.free_rows.is_empty()
            && !self.admission_on_hold()
        {
            let who = (front.deadline(&slo), front.request.priority);
            self.pause_for(now, 1, who, &[]);
        }
    }

    fn pause_for(
        &mut self,
        now: Nanos,
        kv_blocks: u32,
        (deadline, priority): (Nanos, i32),
        admitted: &[RequestId],
    ) -> bool {
        if !self.manager.layer_blocks_freed_by_pause(kv_blocks) || self.manager.cost_window_ns() == 0 {
            return false;
        }
        let in_store_until = self.is_well_after(deadline.max(now));
        let wanted = RoomRequest {
            kv_blocks,
            buffered_until: in_store_until,
            priority,
            host_places: self.manager.host_capacity_blocks(),
        };
        let mut holders = self.holders(now);
        holders.retain(|one| !admitted.contains(&one.id));
        let going = deadline::make_room(&wanted, &holders).unwrap_or_default();
        going.iter().for_each(|id| {
            self.pause(now, *id);
        });
        !going.is_empty()
    }

    /// Returns the running request with the most buffered tokens among those that may be paused and fit into the host
    /// tier.
    pub(super) fn latest_deadline(&self, now: Nanos) -> Option<RequestId> {
        let host_places = self.manager.host_capacity_blocks();
        let wanted = RoomRequest { kv_blocks: 1, buffered_until: Nanos(0), priority: i32::MAX, host_places };
        deadline::make_room(&wanted, &self.holders(now))?.first().copied()
    }

    fn holders(&self, now: Nanos) -> Vec<Holder> {
        let holder = |id: RequestId| {
            let sequence = self.running_request(id)?;
            Some(Holder {
                id,
                buffered_until: sequence.buffered_until(now),
                priority: sequence.request.priority,
                kv_blocks: self.manager.exclusive_kv_blocks(id),
            })
        };
        self.victims(now).into_iter().filter_map(holder).collect()
    }

    /// Returns the time from which a difference of deadlines justifies a pause.
    fn is_well_after(&self, at: Nanos) -> Nanos {
        at.plus(self.manager.cost_window_ns())
    }
}

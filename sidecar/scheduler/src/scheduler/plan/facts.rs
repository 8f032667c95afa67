//! What planning asks about requests: which take part in a step, which may pause, what a plan of placements sees.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::WaitingRequest;
use sluice_policy::placement_planner::deadline::{self, Holder, RoomRequest};
use sluice_policy::placement_planner::pause::Candidate;

use super::Planner;
use crate::sequence::Sequence;
use crate::step_plan::StepPlan;
use crate::step_request::StepRequest;

impl<'a> Planner<'a> {
    /// Returns the requests of the step, those that it admits too, in the order of first admissions.
    pub(super) fn step_requests(&self, plan: &StepPlan) -> Vec<StepRequest<'a>> {
        let stay = self.requests.running.iter().filter(|one| !plan.evicts(one.id()));
        let mut requests: Vec<_> = stay.map(StepRequest::running).collect();
        for planned in &plan.admit {
            let Some(sequence) = self.requests.queue.get(planned.id) else { continue };
            let computed_tokens =
                planned.prefix.as_ref().map_or(sequence.computed_tokens, |prefix| prefix.tokens());
            let offloaded = planned.prefill_offloaded;
            requests.push(StepRequest::admitted(sequence, computed_tokens, offloaded, self.step));
        }
        if !plan.admit.is_empty() {
            requests.sort_by_key(|request| request.admission.unwrap_or(u64::MAX));
        }
        requests
    }

    /// Returns the KV blocks that the request holds, or finds in the cache when it is admitted.
    pub(in crate::scheduler) fn held_kv_blocks(&self, plan: &StepPlan, id: RequestId) -> u32 {
        plan.cached_kv_blocks(id).unwrap_or_else(|| self.manager.kv_of(id).kv_blocks())
    }

    /// Returns the requests of a step that may be paused, in order of preference.
    pub(super) fn victims(&self, requests: &[StepRequest<'_>]) -> Vec<RequestId> {
        let oldest = requests.first().map(|one| one.id());
        let tbt_ns = self.manager.params().slo.tbt_ns;
        let kv_block_bytes = self.manager.geometry().kv_block_bytes();
        let candidate = |one: &StepRequest<'_>| Candidate {
            id: one.id(),
            kv_bytes: u64::from(self.manager.kv_of(one.id()).kv_blocks().max(one.cached_kv_blocks()))
                * kv_block_bytes,
            deposit: one.deposit(self.now, tbt_ns),
        };
        let candidates: Vec<_> = requests.iter().map(candidate).collect();
        let victims = self.requests.pauses.victims(self.now, &candidates);
        victims.into_iter().filter(|id| Some(*id) != oldest).collect()
    }

    /// Returns the request to pause first: the one with the most KV, or under deadline scheduling the one with the most
    /// buffered tokens. The oldest request and requests at the pause limit are exempt.
    pub(super) fn pause_victim(&self, requests: &[StepRequest<'_>], host_places: u32) -> Option<RequestId> {
        match self.objectives() {
            Some(_) => self.latest_deadline(requests, host_places),
            None => self.victims(requests).into_iter().find(|id| self.requests.running.contains(*id)),
        }
    }

    /// Whether, under a policy that pauses, the request has reached the pause limit.
    pub(super) fn is_immune(&self, id: RequestId) -> bool {
        self.requests.is_immune(self.now, id, self.manager.params().longest_pause_ns())
    }

    /// Whether every request but the oldest is at the pause limit.
    pub(super) fn all_immune(&self, requests: &[StepRequest<'_>]) -> bool {
        requests.iter().skip(1).all(|one| self.is_immune(one.id()))
    }

    /// Whether the request is paused beyond the pause limit.
    pub(super) fn is_overdue(&self, id: RequestId) -> bool {
        self.requests.pauses.is_paused(id) && self.is_immune(id)
    }

    /// Returns a waiting request as plans see it.
    pub(super) fn waiter(&self, sequence: &Sequence, tbt_ns: u64) -> WaitingRequest {
        let (request, deposit) = (sequence.id(), sequence.deposit(self.now, tbt_ns));
        let fresh = !self.requests.pauses.is_paused(request);
        WaitingRequest { request, kv_blocks: sequence.admission_kv_blocks(), deposit, fresh }
    }

    /// Returns the running request with the most buffered tokens among those that may be paused and fit into the host
    /// tier.
    pub(super) fn latest_deadline(
        &self,
        requests: &[StepRequest<'_>],
        host_places: u32,
    ) -> Option<RequestId> {
        let wanted = RoomRequest { kv_blocks: 1, buffered_until: Nanos(0), priority: i32::MAX, host_places };
        deadline::make_room(&wanted, &self.holders(requests))?.first().copied()
    }

    /// Returns the running requests that may be paused.
    pub(super) fn holders(&self, requests: &[StepRequest<'_>]) -> Vec<Holder> {
        let holder = |id: RequestId| {
            let sequence = self.requests.running.get(id)?;
            Some(Holder {
                id,
                buffered_until: sequence.buffered_until(self.now),
                priority: sequence.request.priority,
                kv_blocks: self.manager.kv_of(id).exclusive_kv_blocks(),
            })
        };
        self.victims(requests).into_iter().filter_map(holder).collect()
    }
}

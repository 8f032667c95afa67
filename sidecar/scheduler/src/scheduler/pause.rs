//! Implements Pause-Resume (OrbitFlow 4.2): excess requests wait with their KV instead of being recomputed. It also
//! builds the planner's view of the requests and applies the plan's pauses.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{RunningRequest, SchedulerView, WaitingRequest};
use sluice_policy::planner::pause::Candidate;

use super::Scheduler;
use crate::event::Command;
use crate::sequence::Sequence;

/// Waiting requests that a plan considers: it is rare that more are admitted at once.
const MOST_WAITING: usize = 4;

impl Scheduler {
    /// Returns the request to pause first: the one with the most KV, or under deadline scheduling the one with the most
    /// buffered tokens. The oldest request and requests at the pause limit are exempt.
    pub(super) fn pause_victim(&self, now: Nanos) -> Option<RequestId> {
        match self.objectives() {
            Some(_) => self.latest_deadline(now),
            None => self.victims(now).first().copied(),
        }
    }

    /// Returns the requests that may be paused, in order of preference.
    pub(super) fn victims(&self, now: Nanos) -> Vec<RequestId> {
        let oldest = self.running.values().next().map(Sequence::id);
        let tbt_ns = self.manager.params().slo.tbt_ns;
        let kv_block_bytes = self.manager.geometry().kv_block_bytes();
        let candidate = |sequence: &Sequence| Candidate {
            id: sequence.id(),
            kv_bytes: u64::from(self.manager.kv_blocks(sequence.id())) * kv_block_bytes,
            deposit: sequence.deposit(now, tbt_ns),
        };
        let candidates: Vec<_> = self.running.values().map(candidate).collect();
        let victims = self.pauses.victims(now, &candidates);
        victims.into_iter().filter(|id| Some(*id) != oldest).collect()
    }

    /// If a plan is due, requests one for the running requests and the first waiting ones.
    pub(super) fn ask_plan(&mut self, now: Nanos) {
        if self.manager.wants_plan() {
            let crowd = self.scheduler_view(now);
            self.commands.push(Command::Plan(self.manager.ask_plan(&crowd)));
        }
    }

    fn scheduler_view(&self, now: Nanos) -> SchedulerView {
        let by_plan = self.manager.can_pause_help() && self.objectives().is_none();
        let victims = if by_plan { self.victims(now) } else { Vec::new() };
        let others = self.running.values().map(Sequence::id).filter(|id| !victims.contains(id));
        let tbt_ns = self.manager.params().slo.tbt_ns;
        let runner = |id: RequestId, immune: bool| {
            let sequence = &self.running[&self.admission_order[&id]];
            let deposit = sequence.deposit(now, tbt_ns);
            RunningRequest { request: id, kv_blocks: sequence.next_kv_blocks(), deposit, immune }
        };
        let running = victims.iter().map(|id| runner(*id, false)).chain(others.map(|id| runner(id, true)));
        let running = running.collect();
        SchedulerView { running, waiting: self.waiters(now, tbt_ns) }
    }

    /// Returns the waiting requests that a plan may admit: as many as there are free rows, none while admission is on
    /// hold.
    fn waiters(&self, now: Nanos, tbt_ns: u64) -> Vec<WaitingRequest> {
        if !self.manager.plans_batches() || self.admission_on_hold() {
            return Vec::new();
        }
        let may_come = |sequence: &&Sequence| {
            let id = sequence.id();
            !self.pauses.is_paused(id) || self.pauses.can_resume(id, now, true, false).is_ok()
        };
        let first = self.queue.iter().take(MOST_WAITING.min(self.free_rows.len())).take_while(may_come);
        let mut coming_layer_blocks = 0;
        let may_be_let_in = |one: &WaitingRequest| {
            let may = self.manager.may_plan_admission(one, coming_layer_blocks);
            coming_layer_blocks += self.manager.layer_blocks_needed(one);
            may
        };
        first.map(|one| self.waiter(one, now, tbt_ns)).take_while(may_be_let_in).collect()
    }

    /// Pauses the requests that the adopted plan pauses, if they may still be paused.
    pub(super) fn apply_plan_pauses(&mut self, now: Nanos) {
        let planned = self.manager.take_pauses();
        if planned.is_empty() {
            return;
        }
        let victims = self.victims(now);
        for id in planned.into_iter().filter(|id| victims.contains(id)) {
            self.pause(now, id);
        }
    }

    /// Whether, under a policy that pauses, the request has reached the pause limit.
    pub(super) fn is_immune(&self, now: Nanos, id: RequestId) -> bool {
        self.manager.params().pauses() && self.pauses.immune(id, now)
    }

    /// Whether the request is paused beyond the pause limit.
    pub(super) fn is_overdue(&self, now: Nanos, id: RequestId) -> bool {
        self.pauses.is_paused(id) && self.is_immune(now, id)
    }

    /// Moves a request that reached the pause limit to the queue front, and frees a row for it if none is free.
    pub(super) fn promote_overdue(&mut self, now: Nanos) {
        let Some(id) = self.pauses.overdue(now).filter(|id| self.is_immune(now, *id)) else { return };
        if self.queue.front().is_some_and(|front| front.id() != id && !front.is_overdue) {
            self.queue.move_to_front(id);
        }
        if self.free_rows.is_empty() {
            self.pause_or_preempt(now);
        }
    }

    /// Pauses or preempts one running request. The oldest request and requests at the pause limit are exempt. Returns
    /// false if there is no other.
    pub(super) fn pause_or_preempt(&mut self, now: Nanos) -> bool {
        let exempt = self.running.values().skip(1).all(|sequence| self.is_immune(now, sequence.id()));
        if !exempt {
            self.evict_for_growth(now);
        }
        !exempt
    }

    pub(super) fn pause(&mut self, now: Nanos, id: RequestId) -> bool {
        // The client does not notice the pause before it has read its buffered tokens, so the pause counts from then.
        let sequence = self.running_request(id);
        let from =
            sequence.filter(|_| self.objectives().is_some()).map_or(now, |one| one.buffered_until(now));
        let parked = self.suspend_with_kv(id);
        if parked {
            self.pauses.pause(id, from);
            self.manager.record_pause();
            self.counters.pauses += 1;
        }
        parked
    }

    /// Moves a running request to the wait queue with its KV.
    pub(super) fn suspend_with_kv(&mut self, id: RequestId) -> bool {
        let Some(mut sequence) = self.take_running(id) else { return false };
        (sequence.kv_suspended, sequence.prefill_offloaded) = (true, false);
        self.manager.suspend_request(id);
        self.queue.push(sequence);
        true
    }

    /// Whether the queue head waits: its KV is loading, it may not resume yet, or no plan admits it. No request
    /// overtakes it. `coming_layer_blocks` are the blocks of the requests admitted at this boundary.
    pub(super) fn head_must_wait(&mut self, now: Nanos, coming_layer_blocks: u32) -> bool {
        let Some(front) = self.queue.front() else { return false };
        if self.manager.is_loading(front.id()) {
            return true;
        }
        if self.objectives().is_some() {
            return self.can_defer_head(now, coming_layer_blocks);
        }
        let (id, idle) = (front.id(), self.running.is_empty());
        let planned = self.manager.plans_batches();
        let waiter = self.waiter(front, now, self.manager.params().slo.tbt_ns);
        let paused = self.pauses.is_paused(id);
        let feasible = idle
            || self.is_overdue(now, id)
            || match planned {
                true => self.manager.can_admit(&waiter, coming_layer_blocks),
                false if front.waiting_offloaded => {
                    self.manager.can_onload(id, coming_layer_blocks, self.running_tokens())
                        && self.can_reserve_prefill_buffer(now, coming_layer_blocks)
                }
                false if paused => self.manager.resume_fits(id),
                false => self.can_reserve_prefill_buffer(now, coming_layer_blocks),
            };
        if planned && !feasible {
            self.manager.set_blocked_head(Some(id));
        }
        if paused { self.pauses.can_resume(id, now, feasible, idle).is_err() } else { !feasible }
    }

    /// Returns the blocks that a waiting request takes when it is admitted.
    pub(super) fn layer_blocks_needed(&self, now: Nanos, sequence: &Sequence) -> u32 {
        self.manager.layer_blocks_needed(&self.waiter(sequence, now, 0))
    }

    /// Ends the pauses of the admitted requests.
    pub(super) fn record_resumed(&mut self, now: Nanos, admitted: &[RequestId]) {
        for id in admitted.iter().filter(|id| self.pauses.is_paused(**id)).copied().collect::<Vec<_>>() {
            self.pauses.resume(id, now);
            if let Some(sequence) = self.running_request_mut(id) {
                sequence.is_overdue = false;
            }
        }
    }

    /// Returns a waiting request as plans see it.
    pub(super) fn waiter(&self, sequence: &Sequence, now: Nanos, tbt_ns: u64) -> WaitingRequest {
        let (request, deposit) = (sequence.id(), sequence.deposit(now, tbt_ns));
        let fresh = !self.pauses.is_paused(request);
        WaitingRequest { request, kv_blocks: sequence.admission_kv_blocks(), deposit, fresh }
    }
}

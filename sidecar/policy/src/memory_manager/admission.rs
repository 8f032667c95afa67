//! Who is there to plan for, and what a plan says of them: who is paused and who is admitted (OrbitFlow 4.2, 4.3).
//!
//! The memory manager knows whose KV lies where; who is next in line, who may be paused and what clients have in store only the
//! scheduler knows, and says it when a plan is asked for.

use alloc::vec::Vec;

use super::{MemoryManager, StepTimes};
use crate::ids::{LayerId, RequestId};
use crate::planner::request::RequestState;
use crate::reclaim::KvPlacementMode;

/// Decode steps between two looks at what KV adds to one.
const LOOK_EVERY: u64 = 4;

/// A request that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningRequest {
    /// Which one.
    pub request: RequestId,
    /// Columns that it will hold when the next step begins.
    pub columns: u32,
    /// Tokens made and not delivered yet.
    pub deposit: u32,
    /// It may not be paused.
    pub immune: bool,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    /// Which one.
    pub request: RequestId,
    /// Columns that it will hold once admitted.
    pub columns: u32,
    /// Tokens made and not delivered yet.
    pub deposit: u32,
    /// It was not paused: where plans are told to, they let it in late or not.
    pub fresh: bool,
}

/// Everybody that a plan is made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerView {
    /// In the order in which they would be paused; who may not be comes last.
    pub running: Vec<RunningRequest>,
    /// In the order in which they would be admitted.
    pub waiting: Vec<WaitingRequest>,
}

impl SchedulerView {
    pub(super) fn runners(&self) -> Vec<RequestId> {
        self.running.iter().map(|runner| runner.request).collect()
    }

    pub(super) fn waiters(&self) -> Vec<RequestId> {
        self.waiting.iter().map(|waiter| waiter.request).collect()
    }
}

impl MemoryManager {
    /// Plans say who is admitted while KV is short: who comes may make all others late.
    pub fn plans_batches(&self) -> bool {
        self.params.kv_placement() == KvPlacementMode::PerRequest
            && !self.params.serves_by_deadline()
            && self.sizes.host_columns > 0
            && self.params.slo.tbt_ns > 0
    }

    /// Whether a request that waits may come, after others that take `coming_blocks`: a plan says so, and what the plan takes off
    /// the device has left; or all of its KV and everybody's fits the device.
    pub fn can_admit(&mut self, waiter: &WaitingRequest, coming_blocks: u32) -> bool {
        if self.offload.due.is_some() {
            return false;
        }
        if let Some(set) = self.offload.plans.admitted.get(&waiter.request) {
            let needed = self.blocks_needed(waiter) + coming_blocks + self.kv.layers();
            let next = self.target_spare_blocks() - self.reserve_blocks();
            let lacking = (needed + next).saturating_sub(self.spare_blocks());
            let fits = lacking == 0 || lacking <= self.kv.evictable_paused_blocks(waiter.request);
            let buffers_rest = set.is_empty() || self.kv.fetches() == 0;
            self.offload.plans.skips_early_fetches = fits && !buffers_rest;
            return fits && buffers_rest;
        }
        self.kv.placement().layout.moving.is_empty() && self.has_room(waiter, coming_blocks)
    }

    /// Whether a plan may let a request in, after others that take `coming_blocks`. Where nobody is paused that cannot be taken
    /// back, however long all of them grow: no other's KV leaves the device for it.
    pub fn may_plan_admission(&self, waiter: &WaitingRequest, coming_blocks: u32) -> bool {
        let may_be_paused = self.params.pause_bound_ns > 0 && self.can_pause_help();
        may_be_paused || self.must_admit(waiter) || self.has_room(waiter, coming_blocks)
    }

    fn has_room(&self, waiter: &WaitingRequest, coming_blocks: u32) -> bool {
        let needed = self.blocks_needed(waiter) + coming_blocks + self.kv.layers();
        needed + self.target_spare_blocks() <= self.spare_blocks()
    }

    /// Blocks that a request takes on the device when it comes: for all of its KV, but for what a plan has away.
    pub fn blocks_needed(&self, waiter: &WaitingRequest) -> u32 {
        let set = self.planned_layers(waiter.request);
        match self.kv.columns(waiter.request) {
            0 if self.admits_by_prefill_offload(waiter) => waiter.columns * self.staging_slot_blocks(),
            0 => waiter.columns * self.kv.layers(),
            _ => self.kv.blocks_to_join(waiter.request, set),
        }
    }

    /// The layers that a plan has away of a request that it lets in.
    fn planned_layers(&self, request: RequestId) -> &[LayerId] {
        self.offload.plans.admitted.get(&request).map_or(&[], Vec::as_slice)
    }

    /// The plan lets the request in with some of its KV away, and there is no room for all of it: its prompt is computed with
    /// its KV in the host tier (`prefill_offload`), from where it comes as it is planned.
    pub fn admits_by_prefill_offload(&self, waiter: &WaitingRequest) -> bool {
        let planned = !self.planned_layers(waiter.request).is_empty() && self.kv.columns(waiter.request) == 0;
        planned
            && self.are_buffers_idle()
            && !self.fits_with_running(waiter.columns * self.kv.layers())
            && self.can_offload_prefills(waiter.columns)
    }

    /// Whether plans are to let it in late or not.
    fn must_admit(&self, waiter: &WaitingRequest) -> bool {
        self.params.plan_first_come && waiter.fresh
    }

    /// A request that a plan lets in is admitted: its KV lies as the plan says from now on. What is not on the device and need
    /// not be gets a seat.
    pub(super) fn apply_plan(&mut self, request: RequestId) {
        let Some(set) = self.offload.plans.admitted.get(&request) else { return };
        let layout = &self.kv.placement().layout;
        let moves = set.iter().all(|layer| layout.slot_of(*layer).is_some());
        let joins = !set.is_empty() && moves && self.kv.fetches() == 0;
        if joins && self.kv.join(request, set.clone()) {
            self.offload.plans.joined_requests.insert(request);
        }
    }

    /// This request is the next in line and does not come yet: a plan is to look at it. `None` = there is nobody, for all that is
    /// known.
    pub fn set_blocked_head(&mut self, request: Option<RequestId>) {
        self.offload.plans.blocked_head = request;
        self.offload.plans.skips_early_fetches &= request.is_some();
    }

    /// This request waits no longer.
    pub fn on_cancel(&mut self, request: RequestId) {
        self.offload.plans.drop_waiter(request);
    }

    /// Those whom the plan that was adopted last pauses.
    pub fn take_pauses(&mut self) -> Vec<RequestId> {
        core::mem::take(&mut self.offload.plans.pauses)
    }

    /// Running requests as the planner sees them, `growth` columns later. What the host tier has no place for stays on the device;
    /// places go to those first who would be paused first.
    pub(super) fn planner_requests(&self, running: &[RunningRequest], growth: u32) -> Vec<RequestState> {
        let mut places = self.kv.host_places();
        let standing = |runner: &RunningRequest| {
            let (one, placed) =
                (self.planner_request(runner, growth), self.kv.placed_columns(runner.request));
            let leaving = one.full.min(placed + places);
            places -= leaving.saturating_sub(placed);
            let staying = one.full - leaving;
            // Pausing it would free what leaves only.
            RequestState {
                full: leaving,
                tails: one.tails + staying,
                immune: one.immune || staying > 0,
                ..one
            }
        };
        running.iter().map(standing).collect()
    }

    fn planner_request(&self, runner: &RunningRequest, growth: u32) -> RequestState {
        let (held, full) = (self.kv.columns(runner.request), self.kv.full_columns(runner.request));
        let tails = held.saturating_sub(full).max(1);
        RequestState {
            // Of who was admitted a moment ago nothing is there yet.
            full: (held.max(runner.columns) + growth).saturating_sub(tails),
            tails,
            deposit: runner.deposit,
            immune: runner.immune,
            ..RequestState::default()
        }
    }

    /// A waiting request as the planner sees it.
    pub(super) fn planner_request_of_waiting(&self, waiter: &WaitingRequest, growth: u32) -> RequestState {
        let columns = self.kv.columns(waiter.request).max(waiter.columns);
        let full = columns.saturating_sub(1) + growth;
        let prompt = self.kv.columns(waiter.request) == 0;
        RequestState {
            full,
            tails: 1,
            deposit: waiter.deposit,
            immune: false,
            placed: !prompt || self.can_offload_prefills(waiter.columns),
            must_admit: self.must_admit(waiter),
        }
    }

    /// Learns what KV adds to a decode step.
    pub(super) fn record_kv_read(&mut self, times: &StepTimes) {
        let planned =
            self.params.kv_placement() == KvPlacementMode::PerRequest && self.sizes.host_columns > 0;
        if !planned || self.params.slo.tbt_ns == 0 {
            return;
        }
        let columns = self.kv.running_requests().map(|request| u64::from(self.kv.columns(request))).sum();
        self.step_stats.read(columns);
        if self.counters.steps().is_multiple_of(LOOK_EVERY) {
            self.step_stats.observe_kv_read(columns, times);
        }
    }
}

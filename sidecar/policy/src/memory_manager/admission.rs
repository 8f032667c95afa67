//! The requests of a plan, and what the plan decides about them: which are paused and which admitted (OrbitFlow 4.2,
//! 4.3).
//!
//! The memory manager knows where KV resides. The scheduler knows the queue, which requests may be paused and how many
//! tokens clients have buffered; it passes them when a plan is requested.

use alloc::vec::Vec;

use super::scheduler_view::{RunningRequest, WaitingRequest};
use super::views::PlannedAdmissions;
use super::{MemoryManager, StepTimes};
use crate::ids::{LayerId, RequestId};
use crate::planner::request::RequestState;

/// Decode steps between two measurements of what KV adds to a step.
const LOOK_EVERY: u64 = 4;

impl MemoryManager {
    /// The layers that a plan offloads of a request that it admits.
    pub(super) fn planned_layers(&self, request: RequestId) -> &[LayerId] {
        self.offload.plans.admitted_layers(request).unwrap_or_default()
    }

    /// Whether plans admit it even if it makes others late.
    pub(super) fn must_admit(&self, waiter: &WaitingRequest) -> bool {
        self.params.plan_first_come && waiter.fresh
    }

    /// Admits a request of the plan: its KV is placed as planned from now on. Offloaded KV that is not on the device
    /// gets a staging slot.
    pub(super) fn join_plan(&mut self, request: RequestId) {
        let Some(set) = self.joining_layers(request).map(<[LayerId]>::to_vec) else { return };
        if self.kv.join(request, set) {
            self.offload.plans.on_joined(request);
        }
    }

    /// The layers that a plan offloads of a request that it admits, if the placement in force moves them and may change
    /// now.
    pub(super) fn joining_layers(&self, request: RequestId) -> Option<&[LayerId]> {
        let set = self.offload.plans.admitted_layers(request)?;
        let layout = &self.kv.placement().layout;
        let moves = set.iter().all(|layer| layout.slot_of(*layer).is_some());
        (!set.is_empty() && moves && self.kv.fetches() == 0).then_some(set)
    }

    /// Running requests as the planner sees them, `growth` blocks later. KV without a host block stays on the device;
    /// the first candidates for a pause get host blocks first.
    pub(super) fn planner_requests(&self, running: &[RunningRequest], growth: u32) -> Vec<RequestState> {
        let mut places = self.kv.host_places();
        let standing = |runner: &RunningRequest| {
            let (one, placed) =
                (self.planner_request(runner, growth), self.kv.placed_kv_blocks(runner.request));
            let leaving = one.full.min(placed + places);
            places -= leaving.saturating_sub(placed);
            let staying = one.full - leaving;
            // A pause frees only what leaves the device.
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
        let (held, full) = (self.kv.kv_blocks(runner.request), self.kv.full_kv_blocks(runner.request));
        let tails = held.saturating_sub(full).max(1);
        RequestState {
            // A request that was admitted a moment ago has no KV yet.
            full: (held.max(runner.kv_blocks) + growth).saturating_sub(tails),
            tails,
            deposit: runner.deposit,
            immune: runner.immune,
            ..RequestState::default()
        }
    }

    /// A waiting request as the planner sees it.
    pub(super) fn planner_request_of_waiting(&self, waiter: &WaitingRequest, growth: u32) -> RequestState {
        let kv_blocks = self.kv.kv_blocks(waiter.request).max(waiter.kv_blocks);
        let full = kv_blocks.saturating_sub(1) + growth;
        let prompt = self.kv.kv_blocks(waiter.request) == 0;
        RequestState {
            full,
            tails: 1,
            deposit: waiter.deposit,
            immune: false,
            placed: !prompt || self.after(&PlannedAdmissions::default()).fits_host_tier(waiter.kv_blocks),
            must_admit: self.must_admit(waiter),
        }
    }

    /// Measures what KV adds to a decode step.
    pub(super) fn record_kv_read(&mut self, times: &StepTimes) {
        if self.offload.plans_in_force().is_none() || self.params.slo.tbt_ns == 0 {
            return;
        }
        let kv_blocks = self.kv.running_requests().map(|request| u64::from(self.kv.kv_blocks(request))).sum();
        self.step_stats.read(kv_blocks);
        if self.orders.steps().is_multiple_of(LOOK_EVERY) {
            self.step_stats.observe_kv_read(kv_blocks, times);
        }
    }
}

//! What a placement plan is asked: the requests as the planner sees them, and the memory and times that it counts on
//! (OrbitFlow 4.2, 4.3).
//!
//! These parts know where KV resides. The scheduler knows the queue, which requests may be paused and how many tokens
//! clients have buffered; it passes them when a plan is requested.

use alloc::vec::Vec;

use super::admission::{AdmissionView, PlannedAdmissions};
use super::scheduler_view::{RunningRequest, SchedulerView, WaitingRequest};
use super::view::OffloadView;
use crate::geometry::BLOCK_TOKENS;
use crate::placement_planner::link::Link;
use crate::placement_planner::request::{PlanRequest, RequestState};

impl OffloadView<'_> {
    /// The request for a plan of these requests.
    pub(crate) fn plan_request(&self, view: &SchedulerView) -> PlanRequest {
        // Their lengths at the end of the plan's window.
        let growth = u32::from(self.params.replan.window).div_ceil(BLOCK_TOKENS);
        let kv_block_ns = self.step_stats.kv_block_ns() / u64::from(self.sizes.layers);
        // Measured compute is an average over past batches: subtract what they read, not what is read now.
        let read_ns = kv_block_ns * self.step_stats.read_kv_blocks().unwrap_or(0);
        let mut compute_ns = self.step_stats.compute_ns();
        compute_ns.iter_mut().for_each(|ns| *ns = ns.saturating_sub(read_ns));
        PlanRequest {
            id: self.offload.plans.next_id(),
            layers: self.sizes.layers,
            layer_block_bytes: self.geometry.layer_block_bytes,
            running: self.running_request_states(&view.running, growth),
            waiting: view.waiting.iter().map(|waiter| self.waiting_request_state(waiter, growth)).collect(),
            capacity_bytes: self.plan_capacity_bytes(),
            compute_ns,
            kv_block_ns,
            overhead_ns: self.step_stats.overhead_ns(),
            link: self.link(),
            window: self.params.replan.window.max(1),
            tbt_ns: self.params.slo.tbt_ns,
            allowed_permille: self.params.slo.allowed_miss_permille,
            expansions: self.params.plan_expansions,
            alike: self.params.plan_alike,
        }
    }

    /// The running requests alone, none of which may be paused.
    #[cfg(feature = "testing")]
    pub(crate) fn running_alone(&self) -> SchedulerView {
        let runner = |request| RunningRequest {
            request,
            kv_blocks: self.kv.of(request).kv_blocks(),
            deposit: 0,
            immune: true,
        };
        SchedulerView { running: self.kv.requests().running().map(runner).collect(), waiting: Vec::new() }
    }

    /// All blocks of KV but those of the reserve.
    pub(crate) fn plan_capacity_bytes(&self) -> u64 {
        let free = u64::from(self.free_kv_chunks()) * u64::from(self.sizes.layer_blocks_per_chunk);
        let total = u64::from(self.kv.chunk_pool().total_layer_blocks()) + free;
        total.saturating_sub(u64::from(self.reserve_layer_blocks())) * self.geometry.layer_block_bytes
    }

    /// The link to the host tier.
    pub(crate) fn link(&self) -> Link {
        Link::fluid(self.step_stats.link_bytes_per_second().max(1))
    }

    /// Running requests as the planner sees them, `growth` blocks later. KV without a host block stays on the device;
    /// the first candidates for a pause get host blocks first.
    fn running_request_states(&self, running: &[RunningRequest], growth: u32) -> Vec<RequestState> {
        let mut places = self.kv.host_pool().available();
        let standing = |runner: &RunningRequest| {
            let (one, placed) =
                (self.running_request_state(runner, growth), self.kv.of(runner.request).placed_kv_blocks());
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

    fn running_request_state(&self, runner: &RunningRequest, growth: u32) -> RequestState {
        let (held, full) =
            (self.kv.of(runner.request).kv_blocks(), self.kv.of(runner.request).full_kv_blocks());
        let tails = held.saturating_sub(full).max(1);
        RequestState {
            // A request that this plan admits has no KV yet.
            full: (held.max(runner.kv_blocks) + growth).saturating_sub(tails),
            tails,
            deposit: runner.deposit,
            immune: runner.immune,
            ..RequestState::default()
        }
    }

    /// A waiting request as the planner sees it.
    fn waiting_request_state(&self, waiter: &WaitingRequest, growth: u32) -> RequestState {
        let none = PlannedAdmissions::default();
        let memory = AdmissionView { memory: *self, planned: &none };
        let kv_blocks = self.kv.of(waiter.request).kv_blocks().max(waiter.kv_blocks);
        let prompt = self.kv.of(waiter.request).kv_blocks() == 0;
        RequestState {
            full: kv_blocks.saturating_sub(1) + growth,
            tails: 1,
            deposit: waiter.deposit,
            immune: false,
            placed: !prompt || memory.fits_host_tier(waiter.kv_blocks),
            must_admit: memory.must_admit(waiter),
        }
    }
}

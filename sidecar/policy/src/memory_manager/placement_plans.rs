//! Plans the KV of each request (OrbitFlow 4.1 to 4.3): when KV is short, and again when the batch has changed, when
//! steps take other times than predicted, and when the window of the plan ends.
//!
//! No step waits for a plan. At a boundary a plan is due ([`super::AdmissionView::wants_plan`]); the driver takes the request
//! ([`MemoryManager::ask_plan`]), solves it in its own time and answers ([`MemoryManager::planned`]). The next boundary
//! carries it out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::PlannedAdmissions;
use super::kv_placement::moving_layout;
use super::{MemoryManager, SchedulerView};
use crate::geometry::BLOCK_TOKENS;
use crate::ids::{LayerId, RequestId};
use crate::kv::layer_offload::Placement;
use crate::offload::plans::PlanInFlight;
use crate::planner::link::Link;
use crate::planner::replan::ReplanWatch;
use crate::planner::request::{PlanAnswer, PlanRequest, PlanResult};
use crate::planner::steps::StepTime;
use crate::reason::Reason;
use crate::step_model::Layout;

impl MemoryManager {
    /// The request for a plan of these requests. The driver answers with [`MemoryManager::planned`], however long it
    /// takes.
    pub fn ask_plan(&mut self, view: &SchedulerView) -> PlanRequest {
        let request = self.plan_request(view);
        // A plan costs a change of placement, so not at every boundary. Steps count, not boundaries: KV is loaded in
        // pieces, and a new plan would offload it again before any step ran.
        let next_plan_step = self.orders.steps() + u64::from(self.params.replan.least_steps);
        self.offload.plans.on_requested(view.runners(), view.waiters(), next_plan_step);
        request
    }

    /// The same for running requests alone, none of which may be paused, if a plan is due. For tests only.
    #[cfg(feature = "testing")]
    pub fn take_plan_request(&mut self) -> Option<PlanRequest> {
        use super::{MemoryNotes, RunningRequest};
        let kv_blocks = |request| self.kv.kv_blocks(request);
        let runner =
            |request| RunningRequest { request, kv_blocks: kv_blocks(request), deposit: 0, immune: true };
        let view =
            SchedulerView { running: self.kv.running_requests().map(runner).collect(), waiting: Vec::new() };
        let is_due = self.after(&PlannedAdmissions::default()).wants_plan(&MemoryNotes::default());
        is_due.then(|| self.ask_plan(&view))
    }

    /// A plan is due if KV is short or a request waits for one, and the plan in force no longer holds; or if everything
    /// fits the device again.
    pub(super) fn request_plan(&mut self) {
        let placed = !self.kv.placement().layout.moving.is_empty();
        let (next, short) =
            (self.offload.plans.blocked_head(), self.after(&PlannedAdmissions::default()).kv_is_short());
        if self.kv.spilling_requests().next().is_some() {
            // Offloaded prompts first: no other placement has their buffers. No other request is admitted until then,
            // so they are no more than one plan admits.
            return;
        }
        if !placed && !short && next.is_none() {
            self.offload.plans.forget();
            return;
        }
        if placed && self.all_kv_fits() {
            self.offload.due = Some(Placement::default());
            self.offload.plans.forget();
            return;
        }
        if let Some(answer) = self.offload.plans.take_answer() {
            return self.adopt(&answer);
        }
        if self.kv.places_prefills() {
            let coming = self.offload.plans.coming_sets();
            self.offload.due = Some(self.kv.placement_without_prefills(&coming));
        }
        let joined = self.offload.plans.remove_admitted(self.kv.running_requests());
        self.orders.count_many(Reason::Join, joined);
        self.offload.plans.decide_due(self.orders.steps(), self.kv.running_requests());
    }

    fn plan_request(&self, view: &SchedulerView) -> PlanRequest {
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
            running: self.planner_requests(&view.running, growth),
            waiting: view
                .waiting
                .iter()
                .map(|waiter| self.planner_request_of_waiting(waiter, growth))
                .collect(),
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

    /// Makes the plan due, for its requests that still run.
    fn adopt(&mut self, answer: &PlanAnswer) {
        let Some(asked) = self.offload.plans.take_in_flight() else { return };
        if self.params.deadlines().is_some() && !self.is_worthwhile(&asked, answer.result.as_ref()) {
            return self.place_nothing(&asked);
        }
        // Without a solution one request is too many, which shows when a step does not fit. Until then as much is
        // offloaded as possible.
        let last = self.offload.plans.options().len() as u16 - 1;
        let none = || PlanResult {
            paused: 0,
            admitted: 0,
            chosen: alloc::vec![last; asked.running().len()],
            step_ns: 0,
            bound_ns: 0,
        };
        let reason = if answer.result.is_some() { Reason::Plan } else { Reason::NoPlan };
        let found = answer.result.clone().unwrap_or_else(none);
        let replan = self.params.replan;
        let watch = answer.result.as_ref().map(|found| ReplanWatch::new(replan, found.step_ns));
        self.offload.watch = Some(watch.unwrap_or(ReplanWatch::in_vain(replan)));
        self.orders.count(reason);
        let placement = self.placement_of(&asked.placed_requests(&found), &found.chosen);
        self.offload.plans.adopt(&asked, &found);
        self.offload.due = (!placement.is_equivalent(self.kv.placement())).then_some(placement);
    }

    /// The plan makes more tokens per second than running only the requests whose KV fits the device. Without a
    /// solution, each step fetches what does not fit.
    fn is_worthwhile(&self, asked: &PlanInFlight, found: Option<&PlanResult>) -> bool {
        let kv_blocks: u64 =
            asked.running().iter().map(|request| u64::from(self.kv.kv_blocks(*request))).sum();
        let needed_bytes = kv_blocks * u64::from(self.kv.layers()) * self.geometry.layer_block_bytes;
        let room_bytes = needed_bytes.min(self.plan_capacity_bytes());
        let alone_ns = self.step_stats.decode_step_ns();
        let fetched_ns = self.link().in_ns(needed_bytes - room_bytes);
        let step_ns = u128::from(found.map_or(fetched_ns, |found| found.step_ns)).max(alone_ns);
        step_ns * u128::from(room_bytes)
            <= (alone_ns + u128::from(self.cost().allowance_ns())) * u128::from(needed_bytes)
    }

    /// Requests with later deadlines make space at no cost, so a placement with a cost is not taken.
    fn place_nothing(&mut self, asked: &PlanInFlight) {
        self.orders.count(Reason::DeclinedStall);
        self.offload.watch = Some(ReplanWatch::in_vain(self.params.replan));
        self.offload.plans.decline(asked);
        let placed = !self.kv.placement().layout.moving.is_empty();
        self.offload.due = placed.then(Placement::default);
    }

    /// All blocks of KV but those of the reserve.
    fn plan_capacity_bytes(&self) -> u64 {
        let free = u64::from(self.free_kv_chunks()) * u64::from(self.sizes.layer_blocks_per_chunk);
        let total = u64::from(self.kv.chunk_pool().total_layer_blocks()) + free;
        total.saturating_sub(u64::from(self.reserve_layer_blocks())) * self.geometry.layer_block_bytes
    }

    fn link(&self) -> Link {
        Link::fluid(self.step_stats.link_bytes_per_second().max(1))
    }

    /// The chosen sets as a placement; all offloaded layers share buffers. An admitted request takes its set when it
    /// joins.
    fn placement_of(&self, members: &[RequestId], chosen: &[u16]) -> Placement {
        let options = self.offload.plans.options();
        let mut away: Vec<u16> =
            chosen.iter().flat_map(|at| options[usize::from(*at)].iter().copied()).collect();
        away.sort_unstable();
        away.dedup();
        if away.is_empty() {
            return Placement::default();
        }
        // Each set uses each buffer at least twice, so a staging slot never takes more blocks than it frees.
        let min = chosen.iter().filter(|at| **at > 0).map(|at| options[usize::from(*at)].len()).min();
        let Layout { beta, .. } = moving_layout(self.sizes.layers, min.map_or(0, |min| min as u16));
        let layout = Layout { moving: away.into_iter().map(LayerId).collect(), beta };
        let mut sets: Vec<Vec<LayerId>> = Vec::new();
        let runners: BTreeSet<_> = self.kv.running_requests().collect();
        let mut of = BTreeMap::new();
        for (request, at) in members.iter().zip(chosen).filter(|(_, at)| **at > 0) {
            let set = self.offload.plans.set(*at);
            let known = sets.iter().position(|other| *other == set).unwrap_or_else(|| {
                sets.push(set);
                sets.len() - 1
            });
            if runners.contains(request) {
                of.insert(*request, known as u16);
            }
        }
        Placement { layout, sets, of }
    }

    /// Compares the duration of a step with the plan's prediction.
    pub(super) fn check_plan(&mut self, seen: StepTime) {
        if self.offload.watch.as_mut().and_then(|watch| watch.step(seen)).is_some() {
            self.offload.plans.mark_stale();
        }
    }
}

//! Plans the KV of each request (OrbitFlow 4.1 to 4.3): when KV is short, and again when the batch has changed, when
//! steps take other times than predicted, and when the window of the plan ends.
//!
//! No step waits for a plan. At a boundary a plan is due ([`MemoryManager::wants_plan`]); the driver takes the request
//! ([`MemoryManager::ask_plan`]), solves it in its own time and answers ([`MemoryManager::planned`]). The next boundary
//! carries it out.
//! boundary carries it out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use sluice_common::random::mix;

use super::kv_placement::moving_layout;
use super::{MemoryManager, RunningRequest, SchedulerView};
use crate::geometry::BLOCK_TOKENS;
use crate::ids::{LayerId, RequestId};
use crate::kv::layer_offload::Placement;
use crate::planner::link::Link;
use crate::planner::replan::ReplanWatch;
use crate::planner::request::{PlanAnswer, PlanRequest, PlanResult, options};
use crate::planner::steps::StepTime;
use crate::reason::Reason;
use crate::step_model::Layout;

/// A requested plan, and the requests that it is for.
#[derive(Clone, Debug)]
struct PlanInFlight {
    id: u64,
    running: Vec<RequestId>,
    waiting: Vec<RequestId>,
}

impl PlanInFlight {
    /// The running requests of the plan, in the order in which it places them.
    fn requests(&self, found: &PlanResult) -> Vec<RequestId> {
        let (paused, admitted) = (usize::from(found.paused), usize::from(found.admitted));
        self.running[paused..].iter().chain(&self.waiting[..admitted]).copied().collect()
    }

    fn is_answered_by(&self, found: &PlanResult, options: usize) -> bool {
        let (paused, admitted) = (usize::from(found.paused), usize::from(found.admitted));
        paused <= self.running.len()
            && admitted <= self.waiting.len()
            && found.chosen.len() == self.running.len() - paused + admitted
            && found.chosen.iter().all(|at| usize::from(*at) < options)
    }
}

/// Requests for plans, and their answers.
#[derive(Clone, Debug)]
pub(super) struct PlacementPlans {
    /// The sets of layers to choose from.
    options: Vec<Vec<u16>>,
    /// Plans requested so far: the id of the last one.
    last_plan_id: u64,
    /// A plan is due and was not requested yet.
    is_plan_due: bool,
    in_flight: Option<PlanInFlight>,
    answer: Option<PlanAnswer>,
    /// Requests that run by the plan, and those that it admitted, each with its offloaded layers.
    planned_requests: BTreeSet<RequestId>,
    pub admitted: BTreeMap<RequestId, Vec<LayerId>>,
    /// Requests that the plan pauses, until the scheduler takes them.
    pub pauses: Vec<RequestId>,
    /// The queue head that is not admitted yet, and the head for which the plan was requested.
    pub blocked_head: Option<RequestId>,
    planned_head: Option<RequestId>,
    /// An admitted request waits only for the end of fetches: the next step fetches nothing early.
    pub skips_early_fetches: bool,
    /// Admitted requests that joined with offloaded KV, until they are removed from `admitted`.
    pub joined_requests: BTreeSet<RequestId>,
    /// The plan no longer holds.
    is_stale: bool,
    /// No plan is requested before this step.
    next_plan_step: u64,
}

impl PlacementPlans {
    pub fn new(layers: u16) -> PlacementPlans {
        PlacementPlans {
            options: options(layers),
            last_plan_id: 0,
            is_plan_due: false,
            in_flight: None,
            answer: None,
            planned_requests: BTreeSet::new(),
            admitted: BTreeMap::new(),
            pauses: Vec::new(),
            blocked_head: None,
            planned_head: None,
            skips_early_fetches: false,
            joined_requests: BTreeSet::new(),
            is_stale: false,
            next_plan_step: 0,
        }
    }

    /// Forgets the plan; a late answer is ignored.
    pub fn forget(&mut self) {
        (self.is_plan_due, self.in_flight, self.answer, self.planned_head) = (false, None, None, None);
        self.planned_requests.clear();
        self.admitted.clear();
        self.joined_requests.clear();
        self.pauses.clear();
        self.skips_early_fetches = false;
    }

    /// The layers of an option.
    fn set(&self, option: u16) -> Vec<LayerId> {
        self.options[usize::from(option)].iter().copied().map(LayerId).collect()
    }

    /// The plan no longer admits this request.
    pub fn drop_waiter(&mut self, request: RequestId) {
        self.blocked_head = self.blocked_head.filter(|held| *held != request);
        self.admitted.remove(&request);
        self.planned_requests.remove(&request);
        self.joined_requests.remove(&request);
    }

    /// A number that changes with the requested plan or the plan in force.
    pub fn digest_word(&self) -> u64 {
        let flags = [self.is_plan_due, self.in_flight.is_some(), self.answer.is_some()];
        let flags = flags.iter().fold(0, |word, flag| word << 1 | u64::from(*flag));
        let named = self.admitted.keys().chain(&self.pauses).chain(&self.blocked_head);
        named.fold(self.last_plan_id << 3 | flags, |word, request| mix(word ^ request.0))
    }

    /// Whether the plan was made for the running requests and the queue head.
    fn is_for(&self, mut runners: impl Iterator<Item = RequestId>, next: Option<RequestId>) -> bool {
        // Both ascend: a set, and the keys of a map.
        let (mut made_for, mut known) = (self.planned_requests.iter(), 0);
        let all = runners.all(|request| {
            known += 1;
            made_for.any(|one| *one == request)
        });
        // Requests that it admitted may still be waiting.
        all && self.planned_requests.len() - known <= self.admitted.len()
            && (next.is_none() || next == self.planned_head)
    }
}

impl MemoryManager {
    /// A plan is due: the driver asks for it. Not if everything fits and the waiting request was admitted without one.
    pub fn wants_plan(&self) -> bool {
        let (placed, next) = (!self.kv.placement().layout.moving.is_empty(), self.offload.plans.blocked_head);
        self.offload.plans.is_plan_due && (placed || next.is_some() || self.kv_is_short())
    }

    /// The request for a plan of these requests. The driver answers with [`MemoryManager::planned`], however long it
    /// takes.
    pub fn ask_plan(&mut self, crowd: &SchedulerView) -> PlanRequest {
        let request = self.plan_request(crowd);
        let plans = &mut self.offload.plans;
        plans.last_plan_id = request.id;
        (plans.is_plan_due, plans.is_stale) = (false, false);
        // A plan costs a change of placement, so not at every boundary. Steps count, not boundaries: KV is loaded in
        // pieces, and a new plan would offload it again before any step ran.
        plans.next_plan_step = self.counters.steps() + u64::from(self.params.replan.least_steps);
        plans.planned_head = plans.blocked_head;
        plans.in_flight =
            Some(PlanInFlight { id: request.id, running: crowd.runners(), waiting: crowd.waiters() });
        request
    }

    /// The same for running requests alone, none of which may be paused, if a plan is due.
    pub fn take_plan_request(&mut self) -> Option<PlanRequest> {
        let kv_blocks = |request| self.kv.kv_blocks(request);
        let runner =
            |request| RunningRequest { request, kv_blocks: kv_blocks(request), deposit: 0, immune: true };
        let crowd =
            SchedulerView { running: self.kv.running_requests().map(runner).collect(), waiting: Vec::new() };
        self.wants_plan().then(|| self.ask_plan(&crowd))
    }

    /// Whether this answers the requested plan.
    pub fn expects_plan(&self, answer: &PlanAnswer) -> bool {
        let plans = &self.offload.plans;
        let asked = plans.in_flight.as_ref().filter(|asked| asked.id == answer.id);
        let fits = asked
            .zip(answer.result.as_ref())
            .is_none_or(|(asked, found)| asked.is_answered_by(found, plans.options.len()));
        (1..=plans.last_plan_id).contains(&answer.id) && fits
    }

    /// Handles an answer. The next boundary carries the plan out, unless something else is due by then.
    pub fn planned(&mut self, answer: PlanAnswer) {
        let plans = &mut self.offload.plans;
        if plans.in_flight.as_ref().is_some_and(|asked| asked.id == answer.id) {
            plans.answer = Some(answer);
        }
    }

    /// A plan is due if KV is short or a request waits for one, and the plan in force no longer holds; or if everything
    /// fits the device again.
    pub(super) fn request_plan(&mut self) {
        let placed = !self.kv.placement().layout.moving.is_empty();
        let (next, short) = (self.offload.plans.blocked_head, self.kv_is_short());
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
        if let Some(answer) = self.offload.plans.answer.take() {
            return self.adopt(&answer);
        }
        if self.kv.places_prefills() {
            let coming: Vec<_> =
                self.offload.plans.admitted.values().filter(|set| !set.is_empty()).cloned().collect();
            self.offload.due = Some(self.kv.placement_without_prefills(&coming));
        }
        self.remove_admitted();
        let plans = &self.offload.plans;
        let waiting = plans.in_flight.is_some() || plans.next_plan_step > self.counters.steps();
        // Also if it offloads nothing: KV of a paused request stays on the device until a step needs the blocks.
        let holds = !plans.is_stale && plans.is_for(self.kv.running_requests(), next);
        self.offload.plans.is_plan_due = !waiting && !holds;
    }

    /// An admitted request that runs now belongs to the plan, which holds until one of its requests ends.
    fn remove_admitted(&mut self) {
        if !self.offload.plans.admitted.is_empty() {
            let runners: BTreeSet<_> = self.kv.running_requests().collect();
            self.offload.plans.admitted.retain(|request, _| !runners.contains(request));
            let joined =
                self.offload.plans.joined_requests.extract_if(.., |request| runners.contains(request));
            let joined = joined.count() as u32;
            self.count_many(Reason::Join, joined);
        }
    }

    fn plan_request(&self, crowd: &SchedulerView) -> PlanRequest {
        // Their lengths at the end of the plan's window.
        let growth = u32::from(self.params.replan.window).div_ceil(BLOCK_TOKENS);
        let kv_block_ns = self.step_stats.kv_block_ns() / u64::from(self.sizes.layers);
        // Measured compute is an average over past batches: subtract what they read, not what is read now.
        let read_ns = kv_block_ns * self.step_stats.read_kv_blocks().unwrap_or(0);
        let mut compute_ns = self.step_stats.compute_ns();
        compute_ns.iter_mut().for_each(|ns| *ns = ns.saturating_sub(read_ns));
        PlanRequest {
            id: self.offload.plans.last_plan_id + 1,
            layers: self.sizes.layers,
            layer_block_bytes: self.geometry.layer_block_bytes,
            running: self.planner_requests(&crowd.running, growth),
            waiting: crowd
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
        let Some(asked) = self.offload.plans.in_flight.take() else { return };
        if self.params.serves_by_deadline() && !self.is_worthwhile(&asked, answer.result.as_ref()) {
            return self.place_nothing(&asked);
        }
        // Without a solution one request is too many, which shows when a step does not fit. Until then as much is
        // offloaded as possible.
        let most = self.offload.plans.options.len() as u16 - 1;
        let nobody = || PlanResult {
            paused: 0,
            admitted: 0,
            chosen: alloc::vec![most; asked.running.len()],
            step_ns: 0,
            bound_ns: 0,
        };
        let reason = if answer.result.is_some() { Reason::Plan } else { Reason::NoPlan };
        let found = answer.result.clone().unwrap_or_else(nobody);
        let replan = self.params.replan;
        let watch = answer.result.as_ref().map(|found| ReplanWatch::new(replan, found.step_ns));
        self.offload.watch = Some(watch.unwrap_or(ReplanWatch::in_vain(replan)));
        self.count(reason);
        let going = asked.requests(&found);
        let placement = self.placement_of(&going, &found.chosen);
        let (first, plans) = (usize::from(found.paused), &mut self.offload.plans);
        let coming = going.iter().zip(&found.chosen).skip(asked.running.len() - first);
        plans.admitted = coming.map(|(request, at)| (*request, plans.set(*at))).collect();
        plans.pauses = asked.running[..first].to_vec();
        plans.planned_requests = going.into_iter().collect();
        self.offload.due = (!placement.is_equivalent(self.kv.placement())).then_some(placement);
    }

    /// The plan makes more tokens per second than running only the requests whose KV fits the device. Without a
    /// solution, each step fetches what does not fit.
    fn is_worthwhile(&self, asked: &PlanInFlight, found: Option<&PlanResult>) -> bool {
        let kv_blocks: u64 = asked.running.iter().map(|request| u64::from(self.kv.kv_blocks(*request))).sum();
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
        self.count(Reason::DeclinedStall);
        self.offload.watch = Some(ReplanWatch::in_vain(self.params.replan));
        self.offload.plans.planned_requests = asked.running.iter().copied().collect();
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
    fn placement_of(&self, going: &[RequestId], chosen: &[u16]) -> Placement {
        let options = &self.offload.plans.options;
        let mut away: Vec<u16> =
            chosen.iter().flat_map(|at| options[usize::from(*at)].iter().copied()).collect();
        away.sort_unstable();
        away.dedup();
        if away.is_empty() {
            return Placement::default();
        }
        // Each set uses each buffer at least twice, so a staging slot never takes more blocks than it frees.
        let least = chosen.iter().filter(|at| **at > 0).map(|at| options[usize::from(*at)].len()).min();
        let Layout { beta, .. } = moving_layout(self.sizes.layers, least.map_or(0, |least| least as u16));
        let layout = Layout { moving: away.into_iter().map(LayerId).collect(), beta };
        let mut sets: Vec<Vec<LayerId>> = Vec::new();
        let runners: BTreeSet<_> = self.kv.running_requests().collect();
        let mut of = BTreeMap::new();
        for (request, at) in going.iter().zip(chosen).filter(|(_, at)| **at > 0) {
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
        let due = self.offload.watch.as_mut().and_then(|watch| watch.step(seen));
        self.offload.plans.is_stale |= due.is_some();
    }
}

//! Plans the KV of each request (OrbitFlow 4.1 to 4.3): when KV is short, and again when the batch has changed, when
//! steps take other times than predicted, and when the window of the plan ends.
//!
//! No step waits for a plan. At a boundary a plan is due ([`crate::memory_manager::AdmissionView::wants_plan`]); the
//! driver takes the request ([`crate::memory_manager::MemoryManager::ask_plan`]), solves it in its own time and answers
//! ([`crate::memory_manager::MemoryManager::planned`]). The next boundary carries it out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::cost::{CostModel, StepTimes};
use crate::ids::{LayerId, RequestId};
use crate::kv::layer_offload::Placement;
use crate::offload::layouts::moving_layout;
use crate::offload::offloading::Offloading;
use crate::offload::plans::PlanInFlight;
use crate::offload::scheduler_view::SchedulerView;
use crate::offload::view::OffloadView;
use crate::placement_planner::replan::ReplanWatch;
use crate::placement_planner::request::{PlanAnswer, PlanRequest, PlanResult};
use crate::placement_planner::steps::StepTime;
use crate::reason::Reason;
use crate::step_model::Layout;

/// Decode steps between two measurements of what KV adds to a step.
const LOOK_EVERY: u64 = 4;

/// What is decided about plans at a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanDecision {
    /// Offloaded prompts come first: no other placement has their buffers. No other request is admitted until then, so
    /// they are no more than one plan admits.
    Wait,
    /// Nothing is offloaded, and nothing asks for it: no plan is in force.
    Forget,
    /// Everything fits the device again: all KV returns, and no plan is in force.
    Return,
    /// The answer that has arrived is carried out.
    Adopt,
    /// The plan in force is compared with the requests that run. This placement is due, without the buffers of prompts
    /// that are computed.
    Watch(Option<Placement>),
}

/// Decides what happens to plans: a plan is due if KV is short or a request waits for one, and the plan in force no
/// longer holds; or if everything fits the device again.
pub fn decide(view: &OffloadView<'_>) -> PlanDecision {
    let (plans, placed) = (&view.offload.plans, view.is_placed());
    if view.kv.layer_offload().spilling_requests().next().is_some() {
        PlanDecision::Wait
    } else if !placed && plans.blocked_head().is_none() && !view.kv_is_short() {
        PlanDecision::Forget
    } else if placed && view.all_kv_fits() {
        PlanDecision::Return
    } else if plans.is_answered() {
        PlanDecision::Adopt
    } else {
        let prompts = view.kv.layer_offload().places_prefills();
        PlanDecision::Watch(
            prompts.then(|| view.kv.layer_offload().placement_without_prefills(&plans.coming_sets())),
        )
    }
}

/// Whether the plan makes more tokens per second than running only the requests whose KV fits the device. Without a
/// solution, each step fetches what does not fit.
fn is_worthwhile(view: &OffloadView<'_>, asked: &PlanInFlight, found: Option<&PlanResult>) -> bool {
    let kv_blocks: u64 =
        asked.running().iter().map(|request| u64::from(view.kv.of(*request).kv_blocks())).sum();
    let needed_bytes = kv_blocks * u64::from(view.kv.layers()) * view.geometry.layer_block_bytes;
    let room_bytes = needed_bytes.min(view.plan_capacity_bytes());
    let alone_ns = view.step_stats.decode_step_ns();
    let fetched_ns = view.link().in_ns(needed_bytes - room_bytes);
    let step_ns = u128::from(found.map_or(fetched_ns, |found| found.step_ns)).max(alone_ns);
    let allowance_ns = CostModel::new(view.step_stats, view.params).allowance_ns();
    step_ns * u128::from(room_bytes) <= (alone_ns + u128::from(allowance_ns)) * u128::from(needed_bytes)
}

/// The chosen sets as a placement; all offloaded layers share buffers. An admitted request takes its set when it joins.
fn placement_of(view: &OffloadView<'_>, members: &[RequestId], chosen: &[u16]) -> Placement {
    let options = view.offload.plans.options();
    let mut away: Vec<u16> = chosen.iter().flat_map(|at| options[usize::from(*at)].iter().copied()).collect();
    away.sort_unstable();
    away.dedup();
    if away.is_empty() {
        return Placement::default();
    }
    // Each set uses each buffer at least twice, so a staging slot never takes more blocks than it frees.
    let min = chosen.iter().filter(|at| **at > 0).map(|at| options[usize::from(*at)].len()).min();
    let Layout { beta, .. } = moving_layout(view.sizes.layers, min.map_or(0, |min| min as u16));
    let layout = Layout { moving: away.into_iter().map(LayerId).collect(), beta };
    let mut sets: Vec<Vec<LayerId>> = Vec::new();
    let runners: BTreeSet<_> = view.kv.requests().running().collect();
    let mut of = BTreeMap::new();
    for (request, at) in members.iter().zip(chosen).filter(|(_, at)| **at > 0) {
        let set = view.offload.plans.set(*at);
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

impl Offloading<'_> {
    /// The request for a plan of these requests. The driver answers, however long it takes.
    pub fn ask_plan(&mut self, view: &SchedulerView) -> PlanRequest {
        let request = self.view().plan_request(view);
        // A plan costs a change of placement, so not at every boundary. Steps count, not boundaries: KV is loaded in
        // pieces, and a new plan would offload it again before any step ran.
        let next_plan_step = self.orders.steps() + u64::from(self.params.replan.least_steps);
        self.offload.plans.on_requested(view.runners(), view.waiters(), next_plan_step);
        request
    }

    /// Carries out what is decided about plans.
    pub(super) fn follow_plan(&mut self, decision: PlanDecision) {
        match decision {
            PlanDecision::Wait => {}
            PlanDecision::Forget => self.offload.plans.forget(),
            PlanDecision::Return => {
                self.offload.due = Some(Placement::default());
                self.offload.plans.forget();
            }
            PlanDecision::Adopt => {
                if let Some(answer) = self.offload.plans.take_answer() {
                    self.adopt(&answer);
                }
            }
            PlanDecision::Watch(without_prompts) => {
                if without_prompts.is_some() {
                    self.offload.due = without_prompts;
                }
                let joined = self.offload.plans.remove_admitted(self.kv.requests().running());
                self.orders.count_many(Reason::Join, joined);
                self.offload.plans.decide_due(self.orders.steps(), self.kv.requests().running());
            }
        }
    }

    /// Makes the plan due, for its requests that still run.
    fn adopt(&mut self, answer: &PlanAnswer) {
        let Some(asked) = self.offload.plans.take_in_flight() else { return };
        let found = answer.result.as_ref();
        if self.params.deadlines().is_some() && !is_worthwhile(&self.view(), &asked, found) {
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
        let replan = self.params.replan;
        let watch = found.map(|found| ReplanWatch::new(replan, found.step_ns));
        self.offload.watch = Some(watch.unwrap_or(ReplanWatch::in_vain(replan)));
        self.orders.count(if found.is_some() { Reason::Plan } else { Reason::NoPlan });
        let found = found.cloned().unwrap_or_else(none);
        let placement = placement_of(&self.view(), &asked.placed_requests(&found), &found.chosen);
        self.offload.plans.adopt(&asked, &found);
        self.offload.due =
            (!placement.is_equivalent(self.kv.layer_offload().placement())).then_some(placement);
    }

    /// Requests with later deadlines make space at no cost, so a placement with a cost is not taken.
    fn place_nothing(&mut self, asked: &PlanInFlight) {
        self.orders.count(Reason::DeclinedStall);
        self.offload.watch = Some(ReplanWatch::in_vain(self.params.replan));
        self.offload.plans.decline(asked);
        self.offload.due = self.view().is_placed().then(Placement::default);
    }

    /// Admits a request of the plan: its KV is placed as planned from now on. Offloaded KV that is not on the device
    /// gets a staging slot.
    pub fn join_plan(&mut self, request: RequestId) {
        let Some(set) = self.view().joining_layers(request).map(<[LayerId]>::to_vec) else { return };
        if self.kv.join(request, set) {
            self.offload.plans.on_joined(request);
        }
    }

    /// Measures what KV adds to a decode step.
    pub(super) fn record_kv_read(&mut self, times: &StepTimes) {
        if self.offload.plans_in_force().is_none() || self.params.slo.tbt_ns == 0 {
            return;
        }
        let kv_blocks =
            self.kv.requests().running().map(|request| u64::from(self.kv.of(request).kv_blocks())).sum();
        self.step_stats.read(kv_blocks);
        if self.orders.steps().is_multiple_of(LOOK_EVERY) {
            self.step_stats.observe_kv_read(kv_blocks, times);
        }
    }

    /// Compares the duration of a step with the plan's prediction.
    pub(super) fn check_plan(&mut self, seen: StepTime) {
        if self.offload.watch.as_mut().and_then(|watch| watch.step(seen)).is_some() {
            self.offload.plans.mark_stale();
        }
    }
}

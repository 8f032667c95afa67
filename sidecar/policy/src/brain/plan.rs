//! A plan for each request's KV (OrbitFlow 4.1 to 4.3): made when KV is short, and anew when the batch has changed, when steps
//! take other times than predicted, and when its window is over.
//!
//! No step waits for a plan. At a boundary it is asked for; whoever drives the brain takes the question
//! ([`Brain::take_plan_request`]), answers it in its own time and says so ([`Brain::planned`]). The next boundary carries it out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::Brain;
use super::place::moving_layout;
use crate::geometry::BLOCK_TOKENS;
use crate::ids::{LayerId, RequestId};
use crate::kv::stream::Placement;
use crate::planner::link::Link;
use crate::planner::replan::Watch;
use crate::planner::request::{PlanAnswer, PlanRequest, options};
use crate::planner::steps::StepTime;
use crate::reason::Reason;
use crate::step_model::Layout;

/// Questions about plans, and what became of them.
#[derive(Clone, Debug)]
pub(super) struct Plans {
    /// Sets of layers to choose from.
    options: Vec<Vec<u16>>,
    /// Plans that were asked for so far: the name of the last one.
    asked: u64,
    /// The one that is awaited, and who it is for.
    awaited: Option<(u64, Vec<RequestId>)>,
    /// Nobody has taken it yet.
    request: Option<PlanRequest>,
    answer: Option<PlanAnswer>,
    /// Requests that the plan in force was made for.
    made_for: Vec<RequestId>,
    /// The plan no longer holds.
    stale: bool,
    /// No plan is asked for before this boundary.
    again_at: u64,
}

impl Plans {
    pub fn new(layers: u16) -> Plans {
        Plans {
            options: options(layers),
            asked: 0,
            awaited: None,
            request: None,
            answer: None,
            made_for: Vec::new(),
            stale: false,
            again_at: 0,
        }
    }

    /// There is no plan any more, and an answer that comes is for nothing.
    pub fn forget(&mut self) {
        (self.awaited, self.request, self.answer) = (None, None, None);
        self.made_for.clear();
    }

    /// A number that differs when another plan is awaited.
    pub fn word(&self) -> u64 {
        self.asked << 2 | u64::from(self.awaited.is_some()) << 1 | u64::from(self.answer.is_some())
    }
}

impl Brain {
    /// What is to be planned; whoever takes it answers with [`Brain::planned`], however long that takes.
    pub fn take_plan_request(&mut self) -> Option<PlanRequest> {
        self.offload.plans.request.take()
    }

    /// Whether this answers something that was asked.
    pub fn expects_plan(&self, answer: &PlanAnswer) -> bool {
        let plans = &self.offload.plans;
        let known = |at: &u16| usize::from(*at) < plans.options.len();
        let members =
            plans.awaited.as_ref().filter(|(id, _)| *id == answer.id).map(|(_, members)| members.len());
        let fits =
            answer.found.as_ref().zip(members).is_none_or(|(found, members)| {
                found.chosen.len() == members && found.chosen.iter().all(known)
            });
        (1..=plans.asked).contains(&answer.id) && fits
    }

    /// A plan has come. The next boundary carries it out, unless something else is due by then.
    pub fn planned(&mut self, answer: PlanAnswer) {
        let plans = &mut self.offload.plans;
        if plans.awaited.as_ref().is_some_and(|(id, _)| *id == answer.id) {
            plans.answer = Some(answer);
        }
    }

    /// A plan is due when KV is short and the one in force no longer holds, or when everything fits the device again.
    pub(super) fn wish_plan(&mut self) {
        let placed = !self.kv.placement().layout.moving.is_empty();
        if !placed && !self.kv_is_short() {
            self.offload.plans.forget();
            return;
        }
        if placed && self.kv_fits_home() {
            self.offload.due = Some(Placement::default());
            self.offload.plans.forget();
            return;
        }
        if let Some(answer) = self.offload.plans.answer.take() {
            return self.adopt(&answer);
        }
        let plans = &self.offload.plans;
        let waiting = plans.awaited.is_some() || plans.again_at > self.boundaries;
        if waiting || (placed && !plans.stale && self.kv.runners().eq(plans.made_for.iter().copied())) {
            return;
        }
        self.ask_plan();
    }

    fn ask_plan(&mut self) {
        let members: Vec<_> = self.kv.runners().collect();
        let request = self.plan_request(&members);
        let plans = &mut self.offload.plans;
        plans.asked = request.id;
        plans.stale = false;
        // A plan costs a change of placement: not at every boundary, whatever comes and goes.
        plans.again_at = self.boundaries + u64::from(self.params.replan.mismatches);
        plans.awaited = Some((request.id, members));
        plans.request = Some(request);
    }

    fn plan_request(&self, members: &[RequestId]) -> PlanRequest {
        // As long as they will be when the plan's window is over.
        let growth = u32::from(self.params.replan.window).div_ceil(BLOCK_TOKENS);
        PlanRequest {
            id: self.offload.plans.asked + 1,
            layers: self.sizes.layers,
            block_bytes: self.geometry.block_bytes,
            columns: members.iter().map(|request| self.kv.full_columns(*request) + growth).collect(),
            capacity_bytes: self.plan_capacity_bytes(members),
            compute_ns: self.measures.compute_ns(),
            link: self.link(),
            window: self.params.replan.window.max(1),
            expansions: self.params.plan_expansions,
        }
    }

    /// The plan is due, for those who still run.
    fn adopt(&mut self, answer: &PlanAnswer) {
        let Some((_, members)) = self.offload.plans.awaited.take() else { return };
        // Where none was found somebody is one too many, which shows when a step does not fit. Until then as much is away as
        // may be.
        let most = self.offload.plans.options.len() as u16 - 1;
        let (chosen, reason) = match &answer.found {
            Some(found) => (found.chosen.clone(), Reason::Plan),
            None => (alloc::vec![most; members.len()], Reason::NoPlan),
        };
        let (replan, found) = (self.params.replan, answer.found.as_ref());
        self.offload.watch =
            Some(found.map_or(Watch::in_vain(replan), |found| Watch::new(replan, found.step_ns)));
        self.count(reason);
        let placement = self.placement_of(&members, &chosen);
        self.offload.plans.made_for = members;
        self.offload.due = (placement != *self.kv.placement()).then_some(placement);
    }

    /// What full columns may take: all blocks of KV but the tails and the reserve.
    fn plan_capacity_bytes(&self, members: &[RequestId]) -> u64 {
        let per = u64::from(self.sizes.blocks_per_chunk);
        let free = u64::from(self.free_frames()) * per;
        let total = u64::from(self.kv.frames().total_blocks()) + free;
        let tails: u64 = members
            .iter()
            .map(|request| {
                let full = self.kv.full_columns(*request);
                u64::from(self.kv.columns(*request).saturating_sub(full)) * u64::from(self.kv.layers())
            })
            .sum();
        total.saturating_sub(tails + u64::from(self.reserve_blocks())) * self.geometry.block_bytes
    }

    fn link(&self) -> Link {
        Link::fluid(self.measures.link_bytes_per_second().max(1))
    }

    /// The sets that were chosen as a placement; all that move share buffers.
    fn placement_of(&self, members: &[RequestId], chosen: &[u16]) -> Placement {
        let options = &self.offload.plans.options;
        let mut away: Vec<u16> =
            chosen.iter().flat_map(|at| options[usize::from(*at)].iter().copied()).collect();
        away.sort_unstable();
        away.dedup();
        if away.is_empty() {
            return Placement::default();
        }
        // Each request's set serves each buffer twice, so that a seat never takes more blocks than it frees.
        let least = chosen.iter().filter(|at| **at > 0).map(|at| options[usize::from(*at)].len()).min();
        let Layout { beta, .. } = moving_layout(self.sizes.layers, least.map_or(0, |least| least as u16));
        let layout = Layout { moving: away.into_iter().map(LayerId).collect(), beta };
        let mut sets: Vec<Vec<LayerId>> = Vec::new();
        let mut of = BTreeMap::new();
        let runners: BTreeSet<_> = self.kv.runners().collect();
        let away = members.iter().zip(chosen).filter(|(request, at)| **at > 0 && runners.contains(request));
        for (request, at) in away {
            let set: Vec<_> = options[usize::from(*at)].iter().copied().map(LayerId).collect();
            let known = sets.iter().position(|other| *other == set).unwrap_or_else(|| {
                sets.push(set);
                sets.len() - 1
            });
            of.insert(*request, known as u16);
        }
        Placement { layout, sets, of }
    }

    /// A step ended: whether the plan still tells its time.
    pub(super) fn watch_plan(&mut self, seen: StepTime) {
        let due = self.offload.watch.as_mut().and_then(|watch| watch.step(seen));
        self.offload.plans.stale |= due.is_some();
    }
}

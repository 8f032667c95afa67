//! A plan for each request's KV (OrbitFlow 4.1 to 4.3): made when KV is short, and anew when the batch has changed, when steps
//! take other times than predicted, and when its window is over.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Brain;
use super::place::moving_layout;
use crate::geometry::BLOCK_TOKENS;
use crate::ids::{LayerId, RequestId};
use crate::kv::stream::Placement;
use crate::planner::link::Link;
use crate::planner::placement::{by_distance, distances};
use crate::planner::problem::{Object, Problem};
use crate::planner::replan::Watch;
use crate::planner::search::plan;
use crate::planner::steps::StepTime;
use crate::reason::Reason;
use crate::step_model::Layout;

impl Brain {
    /// A plan is due when KV is short and the one in force no longer holds, or when everything fits the device again.
    pub(super) fn wish_plan(&mut self) {
        let placed = !self.kv.placement().layout.moving.is_empty();
        if !placed && !self.kv_is_short() {
            return;
        }
        if placed && self.kv_fits_home() {
            self.offload.due = Some(Placement::default());
            self.offload.planned_for.clear();
            return;
        }
        let members: Vec<_> = self.kv.runners().collect();
        let changed = members != self.offload.planned_for;
        let waiting = self.offload.plan_again_at > self.boundaries;
        if waiting || !(changed || self.offload.replan || !placed) {
            return;
        }
        self.make_plan(members);
    }

    fn make_plan(&mut self, members: Vec<RequestId>) {
        let options = self.options();
        let problem = self.problem(&members, &options);
        self.offload.replan = false;
        // A plan costs a change of placement: not at every boundary, whatever comes and goes.
        self.offload.plan_again_at = self.boundaries + u64::from(self.params.replan.mismatches);
        let found = plan(&problem, self.params.plan_expansions);
        let chosen = match &found {
            Ok(found) => found.chosen.clone(),
            // Somebody is one too many, which shows when a step does not fit. Until then as much is away as may be.
            Err(_) => alloc::vec![options.len() as u16 - 1; members.len()],
        };
        let predicted_ns = found.as_ref().map_or(0, |found| found.cost.time_ns);
        self.offload.watch = found.is_ok().then(|| Watch::new(self.params.replan, predicted_ns));
        self.count(if found.is_ok() { Reason::Plan } else { Reason::NoPlan });
        let placement = self.placement_of(&members, &chosen, &options);
        self.offload.planned_for = members;
        self.offload.due = (placement != *self.kv.placement()).then_some(placement);
    }

    /// Sets of layers to choose from, nothing away first: one for each count of layers that a distance gives.
    fn options(&self) -> Vec<Vec<u16>> {
        let layers = self.sizes.layers;
        let usable = |set: &Vec<u16>| set.len() >= 2 && set.len() < usize::from(layers);
        let sets = distances(layers).into_iter().map(|distance| by_distance(layers, distance)).filter(usable);
        core::iter::once(Vec::new()).chain(sets).collect()
    }

    fn problem(&self, members: &[RequestId], options: &[Vec<u16>]) -> Problem {
        let link = self.link();
        // As long as they will be when the plan's window is over.
        let growth = u32::from(self.params.replan.window).div_ceil(BLOCK_TOKENS);
        let object = |request: &RequestId| {
            let full = self.kv.full_columns(*request);
            let layer_bytes = u64::from(full + growth) * self.geometry.block_bytes;
            Object::kv(&link, self.sizes.layers, layer_bytes, options)
        };
        Problem {
            capacity_bytes: self.plan_capacity_bytes(members),
            compute_ns: self.measures.compute_ns(),
            link,
            write_bytes: 0,
            window: self.params.replan.window.max(1),
            objects: members.iter().map(object).collect(),
        }
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
    fn placement_of(&self, members: &[RequestId], chosen: &[u16], options: &[Vec<u16>]) -> Placement {
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
        for (request, at) in members.iter().zip(chosen).filter(|(_, at)| **at > 0) {
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
        self.offload.replan |= due.is_some();
    }
}

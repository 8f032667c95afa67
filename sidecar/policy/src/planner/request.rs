//! A plan as a question and its answer, so that it can be made anywhere and at any time: both are plain data, and the answer
//! follows from the question alone.

use alloc::vec::Vec;

use super::batch::{BatchCandidate, BatchContext};
use super::link::Link;
use super::placement::{by_distance, distances};
use super::search::gap_permille;
use super::{batch, shared_buffers};

/// A request that runs or waits, as the planner sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestState {
    /// Columns that may leave the device, as many as there will be when the plan's window is over.
    pub full: u32,
    /// Columns that stay.
    pub tails: u32,
    /// Tokens that were made and are not delivered yet.
    pub deposit: u32,
    /// It may not be paused.
    pub immune: bool,
    /// Of one that waits: some of its KV may be away from the start.
    pub placed: bool,
    /// Of one that waits: it is let in wherever all fit, late or not.
    pub must_admit: bool,
}

/// What is to be planned: who runs, and where their KV lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanRequest {
    /// Names the answer; rises from 1.
    pub id: u64,
    /// Layers of the model.
    pub layers: u16,
    /// Bytes of a layer-block.
    pub block_bytes: u64,
    /// Requests that run, in the order in which they would be paused.
    pub running: Vec<RequestState>,
    /// Requests that wait, in the order in which they would be admitted.
    pub waiting: Vec<RequestState>,
    /// Bytes on the device for all of them.
    pub capacity_bytes: u64,
    /// Compute of each layer without any KV, nanoseconds.
    pub compute_ns: Vec<u64>,
    /// What a column of KV adds to the compute of each layer, nanoseconds.
    pub column_ns: u64,
    /// What a step takes beside its layers and what they wait for, nanoseconds.
    pub overhead_ns: u64,
    /// The link.
    pub link: Link,
    /// Steps that the plan holds for.
    pub window: u16,
    /// The most time between two delivered tokens, nanoseconds; 0 = none is too long.
    pub tbt_ns: u64,
    /// Share of the tokens that may come later than that, permille.
    pub allowed_permille: u32,
    /// Its budget of node expansions.
    pub expansions: u32,
    /// The same layers of all requests are away.
    pub alike: bool,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanAnswer {
    /// Of which request.
    pub id: u64,
    /// `None` when no placement fits, or the budget ended before one was found.
    pub result: Option<PlanResult>,
}

/// A batch and its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanResult {
    /// So many of the running requests are paused, the first ones.
    pub paused: u16,
    /// So many of the waiting ones are admitted, the first ones.
    pub admitted: u16,
    /// For each request that then runs, those that go on first, one of [`options`].
    pub chosen: Vec<u16>,
    /// The predicted time of a step, nanoseconds.
    pub step_ns: u64,
    /// No placement of this batch has shorter steps, as far as is proven, nanoseconds: at most `step_ns`.
    pub bound_ns: u64,
}

impl PlanResult {
    /// How much shorter a step of this batch might be, permille of its time, rounded up: the proven gap.
    pub fn gap_permille(&self) -> u32 {
        gap_permille(self.step_ns, self.bound_ns) as u32
    }
}

impl PlanRequest {
    /// The best plan that the budget finds.
    pub fn solve(&self) -> PlanAnswer {
        let found = batch::plan(&self.outlook(), self.expansions, shared_buffers::mean_ns).ok();
        let found = found.map(|best| PlanResult {
            paused: best.paused as u16,
            admitted: best.admitted as u16,
            chosen: best.placement.chosen,
            step_ns: best.placement.cost.time_ns + self.overhead_ns,
            bound_ns: best.placement.bound_ns + self.overhead_ns,
        });
        PlanAnswer { id: self.id, result: found }
    }

    fn outlook(&self) -> BatchContext {
        let options = options(self.layers);
        let member = |one: &RequestState, sets: &[Vec<u16>]| BatchCandidate {
            kv: shared_buffers::object(
                &self.link,
                self.layers,
                self.block_bytes,
                (one.full, one.tails),
                sets,
            ),
            compute_ns: self.column_ns * u64::from(one.full + one.tails),
            tbt_ns: self.tbt_ns,
            deposit: one.deposit,
            immune: one.immune,
            must_admit: one.must_admit,
        };
        let whole = &options[..1];
        let coming = |one: &RequestState| member(one, if one.placed { &options } else { whole });
        BatchContext {
            capacity_bytes: self.capacity_bytes,
            compute_ns: self.compute_ns.clone(),
            overhead_ns: self.overhead_ns,
            link: self.link,
            // The rate into the device was measured beside what goes out: it would be counted twice.
            write_bytes: 0,
            window: self.window,
            allowed_permille: self.allowed_permille,
            other_requests: Vec::new(),
            running: self.running.iter().map(|one| member(one, &options)).collect(),
            waiting: self.waiting.iter().map(coming).collect(),
            alike: self.alike,
        }
    }
}

/// Sets of layers that a request may have away, none first: one for each count of layers that a distance gives. Each count up
/// to half of the layers, spread evenly, leaves a request alone more to choose from; but sets of different counts share few layers,
/// so that more layers pass through the buffers of all, and the same budget reaches less far: measured, steps were 1 to 3 %
/// longer.
pub fn options(layers: u16) -> Vec<Vec<u16>> {
    let usable = |set: &Vec<u16>| set.len() >= 2 && set.len() < usize::from(layers);
    let sets = distances(layers).into_iter().map(|distance| by_distance(layers, distance)).filter(usable);
    core::iter::once(Vec::new()).chain(sets).collect()
}

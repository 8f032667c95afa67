//! A plan's request and answer as plain data. The answer depends only on the request, so a plan can be computed
//! anywhere and at any time.

use alloc::vec::Vec;

use super::batch::{BatchCandidate, BatchContext};
use super::link::Link;
use super::placement::{by_distance, distances};
use super::search::gap_permille;
use super::{batch, shared_buffers};

/// A running or waiting request, as the planner sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestState {
    /// KV blocks that may be offloaded, counted at the end of the plan's window.
    pub full: u32,
    /// KV blocks that stay on the device.
    pub tails: u32,
    /// Tokens generated and not delivered yet.
    pub deposit: u32,
    /// Whether it may not be paused.
    pub immune: bool,
    /// For a waiting request: whether its KV may be partly offloaded from the start.
    pub placed: bool,
    /// For a waiting request: admit it whenever all fit, even if tokens are late.
    pub must_admit: bool,
}

/// The planning problem: which requests run, and where their KV resides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanRequest {
    /// Identifies the answer; increases from 1.
    pub id: u64,
    /// Layers of the model.
    pub layers: u16,
    /// Bytes of a layer block.
    pub layer_block_bytes: u64,
    /// Running requests, in the order in which they would be paused.
    pub running: Vec<RequestState>,
    /// Waiting requests, in the order in which they would be admitted.
    pub waiting: Vec<RequestState>,
    /// Device memory for the KV of all of them, bytes.
    pub capacity_bytes: u64,
    /// Compute of each layer without any KV, nanoseconds.
    pub compute_ns: Vec<u64>,
    /// Contribution of one KV block of KV to the compute of each layer, nanoseconds.
    pub kv_block_ns: u64,
    /// Step time besides the layers and their stalls, nanoseconds.
    pub overhead_ns: u64,
    /// The link.
    pub link: Link,
    /// Steps that the plan applies to.
    pub window: u16,
    /// Maximum time between two delivered tokens, nanoseconds; 0 means no limit.
    pub tbt_ns: u64,
    /// Allowed share of later tokens, permille.
    pub allowed_permille: u32,
    /// Budget of node expansions.
    pub expansions: u32,
    /// Whether the same layers of all requests are offloaded.
    pub alike: bool,
}

/// The planner's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanAnswer {
    /// Id of the plan request.
    pub id: u64,
    /// `None` if no placement fits, or the budget ended before one was found.
    pub result: Option<PlanResult>,
}

/// A batch and its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanResult {
    /// Number of running requests to pause, in order.
    pub paused: u16,
    /// Number of waiting requests to admit, in order.
    pub admitted: u16,
    /// For each request that then runs, the continuing ones first: an index into [`options`].
    pub chosen: Vec<u16>,
    /// Predicted step time, nanoseconds.
    pub step_ns: u64,
    /// Proven lower bound on the step time of this batch, nanoseconds; at most `step_ns`.
    pub bound_ns: u64,
}

impl PlanResult {
    /// Returns the proven gap: the bound on how much shorter a step of this batch could be, permille of its time,
    /// rounded up.
    pub fn gap_permille(&self) -> u32 {
        gap_permille(self.step_ns, self.bound_ns) as u32
    }
}

impl PlanRequest {
    /// Returns the best plan that the budget finds.
    pub fn solve(&self) -> PlanAnswer {
        let found = batch::plan(&self.batch_context(), self.expansions, shared_buffers::mean_ns).ok();
        let found = found.map(|best| PlanResult {
            paused: best.paused as u16,
            admitted: best.admitted as u16,
            chosen: best.placement.chosen,
            step_ns: best.placement.cost.time_ns + self.overhead_ns,
            bound_ns: best.placement.bound_ns + self.overhead_ns,
        });
        PlanAnswer { id: self.id, result: found }
    }

    fn batch_context(&self) -> BatchContext {
        let options = options(self.layers);
        let member = |one: &RequestState, sets: &[Vec<u16>]| BatchCandidate {
            kv: shared_buffers::object(
                &self.link,
                self.layers,
                self.layer_block_bytes,
                (one.full, one.tails),
                sets,
            ),
            compute_ns: self.kv_block_ns * u64::from(one.full + one.tails),
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
            // The measured rate into the device already includes concurrent writes, so counting them here would count
            // them twice.
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

/// Returns the sets of layers that a request may have offloaded, the empty set first: one for each count of layers that
/// a distance gives. Offering every count up to half of the layers, spread evenly, gives a single request more choices.
/// But sets of different counts share few layers, so more layers pass through the shared buffers, and the same budget
/// searches less: measured steps were 1 to 3 % longer.
pub fn options(layers: u16) -> Vec<Vec<u16>> {
    let usable = |set: &Vec<u16>| set.len() >= 2 && set.len() < usize::from(layers);
    let sets = distances(layers).into_iter().map(|distance| by_distance(layers, distance)).filter(usable);
    core::iter::once(Vec::new()).chain(sets).collect()
}

//! A plan as a question and its answer, so that it can be made anywhere and at any time: both are plain data, and the answer
//! follows from the question alone.

use alloc::vec::Vec;

use super::link::Link;
use super::placement::{by_distance, distances};
use super::problem::{Object, Problem};
use super::search::plan;

/// What is to be planned: the KV of some requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRequest {
    /// Names the answer; rises from 1.
    pub id: u64,
    /// Layers of the model.
    pub layers: u16,
    /// Bytes of a layer-block.
    pub block_bytes: u64,
    /// For each request the columns that count.
    pub columns: Vec<u32>,
    /// Bytes on the device for all of them and the prefetch buffer.
    pub capacity_bytes: u64,
    /// Compute of each layer, nanoseconds.
    pub compute_ns: Vec<u64>,
    /// The link.
    pub link: Link,
    /// Steps that the plan holds for.
    pub window: u16,
    /// Its budget of node expansions.
    pub expansions: u32,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanAnswer {
    /// Of which request.
    pub id: u64,
    /// `None` when no placement fits, or the budget ended before one was found.
    pub found: Option<Found>,
}

/// A placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// For each request one of [`options`].
    pub chosen: Vec<u16>,
    /// The predicted time of a step, nanoseconds.
    pub step_ns: u64,
}

impl PlanRequest {
    /// The best plan that the budget finds.
    pub fn solve(&self) -> PlanAnswer {
        let options = options(self.layers);
        let object = |columns: &u32| {
            Object::kv(&self.link, self.layers, u64::from(*columns) * self.block_bytes, &options)
        };
        let problem = Problem {
            capacity_bytes: self.capacity_bytes,
            compute_ns: self.compute_ns.clone(),
            link: self.link,
            write_bytes: 0,
            window: self.window,
            objects: self.columns.iter().map(object).collect(),
        };
        let found = plan(&problem, self.expansions).ok();
        let found = found.map(|plan| Found { chosen: plan.chosen, step_ns: plan.cost.time_ns });
        PlanAnswer { id: self.id, found }
    }
}

/// Sets of layers that a request may have away, none first: one for each count of layers that a distance gives.
pub fn options(layers: u16) -> Vec<Vec<u16>> {
    let usable = |set: &Vec<u16>| set.len() >= 2 && set.len() < usize::from(layers);
    let sets = distances(layers).into_iter().map(|distance| by_distance(layers, distance)).filter(usable);
    core::iter::once(Vec::new()).chain(sets).collect()
}

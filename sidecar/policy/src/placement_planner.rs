//! The placement planner: chooses where the layers of every object reside, so that the batch meets its objectives.
//!
//! Everything that can leave the device is an object of L layers: a model's weights are an object that every
//! step reads; a request's KV is an object that grows. For each object a [`problem::Choice`] lists the offloaded
//! layers. The [`steps`] model predicts the time of a step for all choices on one link. [`search`] finds the choices
//! with the least time, then the fewest link bytes, by branch and bound over the [`relax`]ed problem. [`batch`]
//! compares batches, which differ in the paused and the admitted requests, by late tokens first and tokens per second
//! second. [`shared_buffers`] models how a sidecar carries placements out.
//!
//! [`pause`] tracks paused requests, and [`replan`] decides when a new plan is due.
//!
//! The planner never runs within a step: a plan answers a [`request`] in parallel with steps and applies to a later one
//! (OrbitFlow 4.3). It has a budget of node expansions and reports its distance from the optimum.
//!
//! A sidecar plans only KV: layers of weights move by [`crate::remap`], which does not consider KV, and no policy moves
//! both (`docs/policies.md`). The planner's tests have problems with both.
//!
//! Sources: OrbitFlow 4 (Eq. 1, Algorithm 1, pruned distances, violation cap).

pub mod batch;
mod bytes_used;
pub mod deadline;
mod initial;
pub mod link;
pub mod pause;
pub mod placement;
pub mod problem;
pub mod relax;
pub mod replan;
pub mod request;
pub mod search;
mod search_order;
pub mod shared_buffers;
pub mod steps;

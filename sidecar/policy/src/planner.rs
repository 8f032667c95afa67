//! The planner: where the layers of every object lie, so that the batch keeps its objectives.
//!
//! Whatever can leave the device is the same thing: an object of L layers (DESIGN 6). A model's weights are one that every
//! step reads; a request's KV is one that grows. For each object a [`problem::Choice`] says which layers are away; the
//! [`steps`] model predicts the time of a step for all of them on one link; [`search`] finds the choices with the least time,
//! and among those the fewest link bytes, by branch and bound over the [`relax`]ed problem; [`batch`] compares batches, which
//! differ in who is paused and who is admitted, by late tokens first and tokens per second second. [`shared_buffers`] is how a
//! sidecar carries placements out.
//!
//! [`pause`] keeps who is paused and [`replan`] says when a plan is made anew.
//!
//! Nothing here runs within a step: a plan is a [`request`] that somebody answers beside steps, for a later one (OrbitFlow 4.3),
//! under a budget of node expansions; it says how far from the optimum it may be.
//!
//! In a sidecar it plans KV: layers of weights move by [`crate::remap`], which sees no KV, and no policy moves both
//! (`docs/policies.md`). Problems with both are in its tests.
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

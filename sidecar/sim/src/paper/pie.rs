//! Pie's swapping of whole layers. A sidecar moves the same layers by [`sluice_policy::pie::expansion`], in the order
//! of the planner's link.
//!
//! [`mapping`] records where each layer's KV is, [`swapping`] chooses what moves next, and [`closed_form`] computes the
//! best that they can reach.
//!
//! Source: Pie 3.2 and 3.3.

pub mod closed_form;
pub mod mapping;
pub mod swapping;

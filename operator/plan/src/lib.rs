//! Objects in, objects out: what the operator decides, without a cluster.
//!
//! [`resource_demand`] tells what a slot takes of a GPU and of its host, [`seat`] which slots a tenant has, [`placement`] which GPU each
//! of them gets, [`objects`] what is applied for it, [`validate`] and [`status`] what is told. All of it is pure: the same
//! objects give the same plan, in whatever order they come.
//!
//! What it does not do: read from an API server, write to one, or look at a clock.
#![forbid(unsafe_code)]

mod claims_in_force;
pub mod conditions;
pub mod directives;
pub mod epoch;
pub mod geometry;
pub mod gpu;
pub mod gpu_settings;
pub mod objects;
pub mod observed;
pub mod placement;
pub mod pool_plan;
pub mod report;
pub mod resource_demand;
pub mod shares;
pub mod sidecar_report;
pub mod sizes;
pub mod slots;
pub mod spec_convert;
pub mod validate;
pub mod zone_disruption;

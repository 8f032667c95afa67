//! The operator's decisions as pure functions from objects to objects, without a cluster.
//!
//! [`resource_demand`] computes what a slot takes of a GPU and of its host, [`slots`] selects the slots of a tenant,
//! [`placement`] selects the GPU of each slot, [`objects`] renders what is applied for it, and [`validate`] and
//! [`report`] compute conditions and statuses. The same objects give the same plan, in any order.
//!
//! This crate does not read from or write to an API server, and reads no clock.
//!
//! # Example
//!
//! ```
//! use sluice_plan::shares::{SlotMemory, slot_shares};
//!
//! // Each slot gets its weights and an equal part of the rest.
//! let slot = |weights_bytes| SlotMemory { weights_bytes, ..SlotMemory::default() };
//! let shares = slot_shares(Some(96), 1, &[slot(30), slot(50)]);
//! assert_eq!(shares.iter().map(|slot| slot.share_bytes).collect::<Vec<_>>(), [38, 58]);
//! ```
#![forbid(unsafe_code)]

mod claims_in_force;
pub mod conditions;
pub mod directives;
pub mod epoch;
pub mod geometry;
pub mod gpu;
pub mod gpu_settings;
mod model_source;
pub mod objects;
pub mod observed;
pub mod placement;
pub mod plan_context;
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

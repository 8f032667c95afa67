//! Tests of the plan: values in, values out.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod admission;
mod conditions;
mod cuda_objects;
mod device_request;
mod directives;
mod fixtures;
mod floor;
mod geometry;
mod hangs;
mod inspect;
mod memory;
mod network_flows;
mod objects;
mod pending_update;
mod placement;
mod placement_random;
mod pool_plan;
mod resource_demand;
mod share_plan;
mod sidecar_report;
mod slots;
mod snapshots;
mod status_reporting;
mod volumes;

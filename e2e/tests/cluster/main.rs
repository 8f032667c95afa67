//! The CRDs, the admission policies and the chart on a real API server.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod apply;
mod bounds;
mod chart;
mod fixture;
mod kubectl;
mod left_behind;
mod mistakes;
mod priority;
mod rules;
mod server;

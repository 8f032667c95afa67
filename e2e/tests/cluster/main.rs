//! The CRDs and the admission policy on a real API server.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod apply;
mod bounds;
mod fixture;
mod kubectl;
mod left_behind;
mod priority;
mod rules;
mod server;

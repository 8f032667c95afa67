//! Tests the engine's computation against an independent reference, and against itself with every split of the work.

#![allow(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod activations;
mod agreement;
mod checkpoint;
mod cuda;
mod engine_process;
mod generated;
mod golden;
mod invariance;
mod memory;
mod reference;
mod refusals;
mod specs;

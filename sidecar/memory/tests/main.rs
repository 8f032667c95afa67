//! Device memory behind the port, with an engine that accesses it through its own mappings on its own thread.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

mod async_copies;
mod conformance;
mod copies;
mod cuda;
mod engine_mapping;
mod engine_process;
mod gpu_ledger;
mod hand_over;
mod harness;
mod mapping;
mod ordering;
mod pool;
mod quota;
mod recorded_backing;
mod tier;

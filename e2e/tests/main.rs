//! The product as a user runs it: `sluice up`, `sluice run` and `sluice demo` with real sidecars, engines, signals
//! and sockets.
//!
//! The tests only use binaries, YAML, HTTP, files and `/proc`. Every test has its own folder and checks, after its
//! tenants have ended, that no process, socket or file remains.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod admin;
mod bad_files;
mod demo;
mod drain;
mod engine_faults;
mod examples;
mod gpu;
mod gpu_probe;
mod hangs;
mod hostile;
mod link_peer;
mod listeners;
mod memory_pressure;
mod min_memory;
mod namespaces;
mod page;
mod peers;
mod placement_full;
mod policies;
mod run;
mod shares;
mod sidecar_faults;
mod sleep;
mod soak;
mod support;
mod up;

//! The product as a user meets it: `sluice up`, `sluice run` and `sluice demo` with real sidecars, real engines, real signals and real sockets.
//!
//! A black box: only binaries, YAML, HTTP, files and `/proc`. Every test lives in a folder of its own and looks, when its
//! tenants have ended, whether a process, a socket or a file stayed behind.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod admin;
mod bad_files;
mod demo;
mod drain;
mod engine_faults;
mod examples;
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

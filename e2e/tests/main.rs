//! The product as a user meets it: `sluice up`, `sluice run` and `sluice demo` with real sidecars, real engines, real signals and real sockets.
//!
//! A black box: only binaries, YAML, HTTP, files and `/proc`. Every test lives in a folder of its own and looks, when its
//! tenants have ended, whether a process, a socket or a file stayed behind.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod admin;
mod bad_files;
mod demo;
mod doors;
mod drain;
mod engine_faults;
mod examples;
mod floors;
mod gpu_probe;
mod hangs;
mod hibernate;
mod hostile;
mod link_peer;
mod namespaces;
mod neighbours;
mod no_room;
mod page;
mod policies;
mod run;
mod shares;
mod sidecar_faults;
mod soak;
mod support;
mod under_pressure;
mod up;

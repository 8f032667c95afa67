//! Checks whether a GPU does what the design needs, and prints the answers with figures.
//!
//! [`sluice_memory::cuda`] wraps the calls of the CUDA driver, [`checks`] holds the checks, and [`report`] their
//! results. Every check runs in its own process ([`child_process`]), so that a device fault, a crash or a hang affects
//! only that check.
//!
//! # Example
//!
//! ```
//! use sluice_probe::fitness::expect;
//!
//! // A link of 64 GB/s, memory of 3350 GB/s, 80 GiB: what remapping can free of common models.
//! for model in expect([64.0, 3350.0], 80 << 30) {
//!     assert!(model.r > 1.0, "copying a layer of {} takes longer than computing it", model.model);
//! }
//! ```

pub mod args;
pub mod bench;
pub mod channel;
pub mod checks;
pub mod child_process;
pub mod error;
pub mod fitness;
pub mod kernels;
pub mod layouts;
pub mod machine;
pub mod models;
pub mod numa;
pub mod program;
pub mod questions;
pub mod report;
pub mod results;
pub mod run;
pub mod statistics;
pub mod suite;

pub use error::Error;

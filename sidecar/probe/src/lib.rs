//! Checks whether a GPU does what the design needs, and prints the answers with figures.
//!
//! [`driver`] opens the CUDA driver, [`cuda`] wraps its calls, [`checks`] holds the checks, and [`report`] their
//! results. Every check runs in its own process ([`child_process`]), so that a device fault, a crash or a hang affects
//! only that check.

pub mod args;
pub mod bench;
pub mod channel;
pub mod checks;
pub mod child_process;
pub mod cuda;
pub mod driver;
pub mod error;
pub mod fitness;
pub mod layouts;
pub mod machine;
pub mod models;
pub mod numa;
pub mod report;
pub mod results;
pub mod run;
pub mod statistics;

pub use error::Error;

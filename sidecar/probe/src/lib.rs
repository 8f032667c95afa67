//! Asks a GPU whether it does what the design needs, and prints the answers with figures.
//!
//! [`driver`] opens the CUDA driver, [`cuda`] wraps the calls that the questions need, [`rows`] holds the questions,
//! [`report`] what they answered. Every row runs in a process of its own ([`peer`]), so that a fault of the device, a crash or
//! a hang of one row costs that row alone.

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

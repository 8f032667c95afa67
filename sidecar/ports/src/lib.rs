//! The scheduler's interfaces to the outside: memory that runs the policy's actions, compute that runs steps,
//! the peers on the same GPU, and the planner. Simulated, host and CUDA backends implement the same traits;
//! all memory backends pass the same conformance suite.
//!
//! All interfaces are asynchronous: `submit` returns immediately and `poll` returns what has ended. Callers
//! pass the time; a simulated backend receives virtual time.

pub mod compute;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod memory;
pub mod peers;
pub mod planner;
pub mod sampling;

pub use compute::{Compute, ComputeEvent, EngineHello};
pub use memory::Memory;
pub use planner::Planner;

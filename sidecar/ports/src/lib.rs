//! The two things a scheduler needs from the outside world: memory that carries out the policy's orders and compute
//! that runs steps; beside them its neighbours, and who makes its plans. Simulated, host and CUDA bodies implement the same traits and pass the same conformance suite.
//!
//! All are asynchronous in the plainest way: `submit` returns at once, `poll` hands back what has ended. Neither
//! knows the time of day; a simulated body is told the virtual time.

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

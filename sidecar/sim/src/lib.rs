//! Simulated memory and compute behind the production ports, in virtual time.
//!
//! The policy and the scheduler that run here are the ones that run in production, unchanged. Memory holds fingerprints
//! instead of bytes: a chunk knows which slab and generation, or which tokens' KV, it carries. Compute reads these
//! fingerprints and derives every token from them, so that any mistake about memory (a slot reused too early, a stale
//! block table, a handed-over chunk read again) changes tokens or is reported outright.
//!
//! What it does not do: reimplement a decision, read a clock, draw from an unseeded source of randomness.

pub mod compute;
pub mod device;
pub mod estimate;
pub mod experiments;
pub mod gpu;
pub mod gpu_ledger;
pub mod machine;
pub mod memory;
pub mod profiles;
pub mod rng;
pub mod serve;
pub mod simulation;
pub mod soak;
pub mod tunables;
pub mod workload;

pub use compute::SimCompute;
pub use device::{Detail, Device, Faults, Profile, SharedDevice};
pub use gpu::Gpu;
pub use memory::SimMemory;
pub use simulation::Simulation;

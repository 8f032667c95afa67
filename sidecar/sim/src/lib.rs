//! Simulated memory and compute backends behind the production ports, in virtual time.
//!
//! The policy and the scheduler are the production code, unchanged. Memory holds fingerprints instead of bytes: a chunk
//! records the slab and generation, or the KV tokens, that it holds. Compute derives every token from these
//! fingerprints. So every memory error (a slot reused too early, a stale block table, a read of a handed-over chunk)
//! changes tokens or is counted.
//!
//! The simulator decides nothing itself, reads no clock and uses no unseeded randomness.
//!
//! # Example
//!
//! ```
//! use sluice_sim::soak;
//!
//! // A seed draws tenants, their load and faults. It fails if a token differs or a chunk does not come back.
//! let held = soak::run(3, None)?;
//! assert!(held.answered > 0);
//! assert_eq!(soak::run(3, None)?, held);
//! # Ok::<(), soak::SeedFailure>(())
//! ```

pub mod compute;
pub mod device;
pub mod direction;
pub mod estimate;
pub mod experiments;
pub mod figure;
pub mod gpu;
pub mod gpu_ledger;
pub mod machine;
pub mod memory;
pub mod paper;
pub mod placement_planner;
pub mod profiles;
pub mod serve;
pub mod simulation;
pub mod soak;
pub mod tunables;
pub mod workload;

pub use compute::SimCompute;
pub use device::{Detail, Profile, SharedDevice, SimDevice, SimFaults};
pub use gpu::Gpu;
pub use memory::SimMemory;
pub use simulation::Simulation;

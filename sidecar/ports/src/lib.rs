//! The scheduler's interfaces to the outside: memory that runs the policy's actions, compute that runs steps,
//! the peers on the same GPU, and the placement planner. Simulated, host and CUDA backends implement the same traits;
//! all memory backends pass the same conformance suite.
//!
//! All interfaces are asynchronous: `submit` returns immediately and `poll` returns what has ended. Callers
//! pass the time; a simulated backend receives virtual time.
//!
//! # Example
//!
//! ```
//! use std::collections::VecDeque;
//!
//! use sluice_policy::action::{Action, Work};
//! use sluice_policy::event::{Completion, Outcome};
//! use sluice_policy::ids::{ActionId, ChunkId, Nanos};
//! use sluice_policy::reason::Reason;
//! use sluice_ports::Memory;
//!
//! /// A backend that ends each action at once and copies nothing.
//! #[derive(Default)]
//! struct AtOnce(VecDeque<Completion>);
//!
//! impl Memory for AtOnce {
//!     fn submit(&mut self, _now: Nanos, action: Action) {
//!         let outcome = Outcome::Done { bytes: 0, duration_ns: 0 };
//!         self.0.push_back(Completion { id: action.id, outcome });
//!     }
//!
//!     fn poll(&mut self, _now: Nanos) -> Option<Completion> {
//!         self.0.pop_front()
//!     }
//!
//!     fn used_bytes(&self) -> u64 {
//!         0
//!     }
//! }
//!
//! let mut memory = AtOnce::default();
//! let work = Work::Create(vec![ChunkId(0)]);
//! memory.submit(Nanos(0), Action { id: ActionId(7), work, reason: Reason::Load, due: None });
//! assert_eq!(memory.poll(Nanos(1)).map(|done| done.id), Some(ActionId(7)));
//! assert_eq!(memory.poll(Nanos(1)), None);
//! ```

pub mod block_budget;
pub mod compute;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "fake")]
pub mod fake_memory;
pub mod memory;
pub mod peers;
pub mod placement_planner;
pub mod sampling;

pub use compute::{Compute, ComputeEvent, EngineHello};
pub use memory::Memory;
pub use placement_planner::PlacementPlanner;

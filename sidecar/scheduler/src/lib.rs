//! Runs the step loop: it decides which requests run, in which batch and with which tokens.
//!
//! [`scheduler::Scheduler`] is a pure state machine: it takes events and the time, and returns commands and outputs.
//! [`driver::Driver`] connects it to a backend (memory and compute ports) through one totally ordered queue.
//! [`journal`] records that queue and replays it. The simulator, the host-memory backend and the CUDA backend run the
//! same code.
//!
//! The crate makes no memory decisions (`sluice-policy` does) and knows no text, sockets or clocks.
//!
//! # Example
//!
//! ```
//! use sluice_policy::geometry::{ActivationCost, Geometry};
//! use sluice_policy::ids::Nanos;
//! use sluice_policy::memory_manager::MemoryManager;
//! use sluice_policy::params::Params;
//! use sluice_scheduler::{Command, Config, Scheduler};
//!
//! let geometry = Geometry {
//!     chunk_bytes: 64 << 10,
//!     capacity_chunks: 64,
//!     global_bytes: 64 << 10,
//!     slab_bytes: vec![256 << 10; 4],
//!     layer_block_bytes: 8 << 10,
//!     activation: ActivationCost::default(),
//!     staging_chunks: 1,
//! };
//! let params = Params { max_model_tokens: 128, guaranteed_kv_bytes: 1 << 20, ..Params::default() };
//! let mut scheduler = Scheduler::new(Config::default(), MemoryManager::new(params, geometry)?);
//! scheduler.start(Nanos(0));
//! // It loads the model first. The caller carries commands out and hands their results in as events.
//! let commands = scheduler.take_commands();
//! assert!(!commands.is_empty() && commands.iter().all(|command| matches!(command, Command::Memory(_))));
//! # Ok::<(), sluice_policy::config_error::ConfigError>(())
//! ```

pub mod batch;
pub mod block_budget;
pub mod config;
pub mod driver;
pub mod event;
pub mod journal;
mod peer_loans;
mod peer_waits;
pub mod queue;
pub mod scheduler;
pub mod sequence;
pub mod snapshot;
pub mod step_plan;
pub mod step_request;
mod time_slice;

pub use config::{Config, Membership, QueueOrder, TimeSharing};
pub use driver::Driver;
pub use event::{Command, Event, Finish, RejectReason, Request, SchedulerOutput, Sleep, UnavailableReason};
pub use scheduler::{CONSTANTS, Scheduler};
pub use snapshot::Snapshot;

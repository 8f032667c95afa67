//! Runs the step loop: it decides which requests run, in which batch and with which tokens.
//!
//! [`scheduler::Scheduler`] is a pure state machine: it takes events and the time, and returns commands and outputs.
//! [`driver::Driver`] connects it to a backend (memory and compute ports) through one totally ordered queue.
//! [`journal`] records that queue and replays it. The simulator, the host-memory backend and the CUDA backend run the
//! same code.
//!
//! The crate makes no memory decisions (`sluice-policy` does) and knows no text, sockets or clocks.

pub mod batch;
pub mod config;
pub mod driver;
pub mod event;
pub mod journal;
pub mod queue;
pub mod scheduler;
pub mod sequence;
pub mod snapshot;

pub use config::{Config, Membership, QueueOrder, Sharing};
pub use driver::Driver;
pub use event::{Command, Event, Finish, RejectReason, Request, SchedulerOutput, Sleep, UnavailableReason};
pub use scheduler::{CONSTANTS, Scheduler};
pub use snapshot::Snapshot;

//! The step loop: which requests run, in which batch, with which tokens.
//!
//! [`scheduler::Scheduler`] is a pure state machine: events in, orders and notices out, time an argument. [`driver::Driver`] joins
//! it to a body (memory and compute ports) through one totally ordered queue. [`journal`] writes that queue down and
//! replays it. The same code runs in the simulator, on host memory and on CUDA.
//!
//! What it does not do: decide about memory (`sluice-policy` does), know text, sockets or clocks.

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

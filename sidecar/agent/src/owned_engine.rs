//! An engine that schedules by itself over the sidecar's memory, such as vLLM: the port of its block budget.
//!
//! The worker of the engine runs the model over chunks of the sidecar, and its scheduler has a budget of KV blocks
//! ([`sluice_scheduler::block_budget`]). [`engine`] is the port: it carries orders out over the links to both.

pub mod acceptor;
pub mod engine;
pub mod extent_map;
pub mod held_fills;
pub mod memory_loop;
pub mod message;
pub mod passes;
pub mod worker_connection;

//! What crosses a process boundary as JSON: a sidecar's report of its state, and the file that tells it what to be.
//!
//! Plain data and serde, and beside them how both sides of that boundary restart what dies. Units stand last in names: `_bytes`, `_ns`, `_permille`, `_at_unix_ms`.
#![forbid(unsafe_code)]

pub mod config;
pub mod restart;
pub mod state;

pub use state::State;

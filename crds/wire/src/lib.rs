//! JSON messages between processes: a sidecar's configuration, the directive about its peers, the messages of
//! peers, a sidecar's report of its state, the sizes of a model, the progress of its download, and the CUDA devices of
//! a machine.
//!
//! Plain data and serde, and what both sides of that boundary share: restart delays, secrets in files, and where programs
//! are. Names end with their unit: `_bytes`, `_ns`, `_permille`, `_at_unix_ms`.
//!
//! # Example
//!
//! ```
//! use sluice_wire::State;
//! use sluice_wire::state::Phase;
//!
//! let mut state = State { phase: Phase::Idle, ..State::default() };
//! state.tenant.name = "chat".into();
//! let sent = serde_json::to_vec(&state).expect("it is plain data");
//! assert_eq!(State::from_json(&sent).expect("the version is ours"), state);
//! ```
#![forbid(unsafe_code)]

pub mod config;
pub mod config_rejection;
pub mod cuda_devices;
pub mod directive;
pub mod download;
pub mod geometry;
pub mod grants;
pub mod message;
pub mod overview;
pub mod programs;
pub mod restart;
pub mod secrets;
pub mod sidecar_hangs;
pub mod state;
pub mod time;

pub use directive::Directive;
pub use overview::Overview;
pub use state::State;

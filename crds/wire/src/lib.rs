//! Types that cross a process boundary as JSON: a sidecar's configuration, its directive, requests between peers, a
//! sidecar's report of its state, the sizes of a model, the progress of a download, and the overview of the operator's
//! leader.
//!
//! Plain data and serde, and the rule by which both sides of that boundary restart failed processes. Names end with
//! their unit: `_bytes`, `_ns`, `_permille`, `_at_unix_ms`.
#![forbid(unsafe_code)]

pub mod config;
pub mod config_rejection;
pub mod directive;
pub mod download;
pub mod geometry;
pub mod grants;
pub mod message;
pub mod overview;
pub mod restart;
pub mod sidecar_hangs;
pub mod state;
pub mod time;

pub use directive::Directive;
pub use overview::Overview;
pub use state::State;

//! What crosses a process boundary as JSON: the file that tells a sidecar what to be, the directive that tells it how
//! to get on with its neighbours, what neighbours ask of each other, a sidecar's report of its state, the sizes of a
//! model, and how far its download is.
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

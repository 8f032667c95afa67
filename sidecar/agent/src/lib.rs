//! The sidecar: HTTP, model files, text, engine process, configuration and the engine loop around a tenant's scheduler.
//!
//! # Example
//!
//! ```
//! use sluice_agent::gateway::detok::StopFilter;
//!
//! // A stop string that tokens cut in two never reaches the client.
//! let mut filter = StopFilter::new(vec!["END".into()]);
//! assert_eq!(filter.push("a story EN").text, "a story ");
//! let last = filter.push("D and more");
//! assert!(last.is_stopped && last.text.is_empty());
//! ```

pub mod admin;
pub mod args;
pub mod clock;
pub mod credential_reload;
pub mod devices;
pub mod directive;
pub mod download;
pub mod engine_loop;
pub mod engine_process;
pub mod fuzz;
pub mod gateway;
pub mod heartbeat;
pub mod inspect;
mod logs;
pub mod metrics;
pub mod model;
mod open_files;
pub mod owned_engine;
pub mod peers;
pub mod probes;
pub mod proxied_engine;
mod root_cause;
pub mod run;
pub mod scheduler_handle;

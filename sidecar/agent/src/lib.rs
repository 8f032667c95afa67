//! The sidecar: HTTP, model files, text, engine process, configuration and the engine loop around a tenant's scheduler.

pub mod admin;
pub mod args;
pub mod clock;
pub mod credential_reload;
pub mod directive;
pub mod download;
pub mod engine_loop;
pub mod engine_process;
pub mod gateway;
pub mod heartbeat;
pub mod inspect;
mod logs;
pub mod metrics;
pub mod model;
pub mod peers;
pub mod probes;
pub mod proxied_engine;
pub mod run;
pub mod scheduler_handle;

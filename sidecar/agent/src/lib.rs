//! The async shell around a tenant: HTTP, model files, text, the engine's process, configuration.

pub mod admin;
pub mod args;
pub mod clock;
pub mod directive;
pub mod engine_child;
pub mod fetch;
pub mod fresh;
pub mod gateway;
pub mod heartbeat;
pub mod inspect;
mod logs;
pub mod metrics;
pub mod model;
pub mod neighbours;
pub mod probes;
pub mod proxy;
pub mod room;
pub mod run;
pub mod service;

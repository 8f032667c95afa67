//! The operator: watches pools and tenants, and makes the cluster what `sluice-plan` says it is to be.
//!
//! | module | what it does |
//! |---|---|
//! | [`capabilities`] | what the cluster can do |
//! | [`api`] | the way to the API server |
//! | [`world`] | mirrors what is watched, pruned to what decisions need |
//! | [`queue`] | which pools are to be looked at, and when |
//! | [`reconcile`] | one pool with its tenants, in five steps: dereference, validate, build, apply, status |
//! | [`credentials`] | certificates of sidecars and of the operator, kept in Secrets |
//! | [`sidecars`] | directives go out, states come in |
//! | [`leader_election`] | one of the replicas leads |
//! | [`server`] | health, metrics, the read API |
//! | [`dashboard`] | the live dashboard beside it |
//! | [`telemetry`] | log lines and traces |
//!
//! All decisions are in `sluice-plan`; here is what talks to the API server.
#![forbid(unsafe_code)]

mod api;
mod api_keys;
mod args;
mod cache;
mod capabilities;
pub mod credentials;
mod dashboard;
pub mod leader_election;
mod metrics;
mod queue;
mod reconcile;
mod run;
mod server;
pub mod sidecars;
mod telemetry;

pub use args::Args;
pub use run::run;

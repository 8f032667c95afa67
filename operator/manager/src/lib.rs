//! The operator: watches pools and tenants, and brings the cluster to the state that `sluice-plan` computes.
//!
//! | module | what it does |
//! |---|---|
//! | [`capabilities`] | features of the cluster |
//! | [`api`] | the client of the API server |
//! | [`cache`] | watched objects, pruned to what decisions need |
//! | [`queue`] | which pools to reconcile, and when |
//! | [`reconcile`] | one pool with its tenants, in five steps: dereference, validate, build, apply, status |
//! | [`credentials`] | certificates of sidecars and of the operator, kept in Secrets |
//! | [`sidecars`] | sends directives and reads states |
//! | [`leader_election`] | one of the replicas leads |
//! | [`server`] | health, metrics, the read API |
//! | [`dashboard`] | the live dashboard |
//! | [`telemetry`] | log lines and traces |
//!
//! All decisions are in `sluice-plan`; this crate communicates with the API server and the sidecars.
//!
//! # Example
//!
//! ```
//! use clap::Parser;
//! use sluice_operator::Args;
//!
//! let words = ["sluice-operator", "--sidecar-image", "registry/sidecar:1", "--engine-image", "registry/engine:1"];
//! let args = Args::parse_from(words);
//! assert_eq!(args.status_interval().as_secs(), 30);
//! // Runs until a signal, in a cluster or with KUBECONFIG.
//! let run: fn(Args) -> _ = sluice_operator::run;
//! # let _ = run;
//! ```
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

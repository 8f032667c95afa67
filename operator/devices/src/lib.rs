//! `sluice-devices`: the DRA driver `sluice.dev`, which runs on each node.
//!
//! The driver offers two kinds of devices. A *neighbourhood* is a folder that all pods of one ResourceClaim share:
//! the tenants of a GPU keep their ledger there, without a hostPath volume. A *host GPU* is simulated in host memory,
//! for trials and tests. The driver publishes them in a ResourceSlice, prepares claims on the kubelet's request and
//! describes to the container runtime by CDI which devices a container gets.
//!
//! The driver does not touch NVIDIA GPUs (NVIDIA's driver does), read neighbourhoods or place pods.
//!
//! # Example
//!
//! ```
//! use serde_json::json;
//! use sluice_devices::config::{ConfigError, check};
//!
//! let capacity = "4Gi".parse().expect("a quantity");
//! let ours = json!({
//!     "apiVersion": "sluice.dev/v1alpha1", "kind": "HostGpuConfig", "memory": "96Mi", "chunkBytes": "64Ki",
//! });
//! assert!(check(&ours, "host-0", &capacity).is_ok());
//! let other = json!({"apiVersion": "v1", "kind": "Pod"});
//! assert!(matches!(check(&other, "host-0", &capacity), Err(ConfigError::Kind { .. })));
//! ```
#![forbid(unsafe_code)]

pub mod args;
pub mod cdi;
pub mod claim;
pub mod cli;
pub mod config;
pub mod devices;
pub mod driver;
pub mod h2_authority;
pub mod health;
pub mod helm_hooks;
pub mod proto;
pub mod serve;
pub mod slice;
pub mod store;

/// Name of the driver in claims, in slices and in the kubelet's plugin registry.
pub const DRIVER: &str = "sluice.dev";

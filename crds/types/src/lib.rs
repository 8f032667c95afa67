//! The two kinds of `sluice.dev/v1alpha1`, `GpuPool` and `ModelTenant`, with their CRDs and a strict YAML loader.
//!
//! One definition serves three readers: the API server (through the generated CRD: bounds, defaults, CEL rules), the
//! operator (through the Rust types) and `sluice up` (through [`load`], which applies the same defaults, bounds and
//! rules without a cluster). Doc comments on fields become the CRD's descriptions, so each states unit and default.
//!
//! What it does not do: talk to a cluster, place anything, start anything.
//!
//! # Example
//!
//! ```
//! use sluice_types::load::load_valid_str;
//!
//! let yaml = "
//! apiVersion: sluice.dev/v1alpha1
//! kind: GpuPool
//! metadata: {name: pool}
//! spec:
//!   deviceClassName: host.sluice.dev
//!   device: {host: {memory: 96Mi}}
//!   gpus: [{name: chat}]
//!   hostMemoryPerGPU: 2Gi
//! ";
//! assert_eq!(load_valid_str(yaml, "pool.yaml").expect("it is valid").len(), 1);
//! let error = load_valid_str(&yaml.replace("96Mi", "much"), "pool.yaml").unwrap_err();
//! assert!(error.to_string().contains("pool.yaml"), "{error}");
//! ```
#![forbid(unsafe_code)]

pub mod conditions;
pub mod crd;
pub mod fuzz;
pub mod load;
pub mod pool;
pub mod quantity;
pub mod rules;
pub mod shared;
pub mod tenant;

pub use crd::crd_yaml;
pub use pool::{GpuPool, GpuPoolSpec};
pub use quantity::{CpuQuantity, Quantity};
pub use tenant::{ModelTenant, ModelTenantSpec};

/// API group of both kinds.
pub const GROUP: &str = "sluice.dev";
/// API version of both kinds.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` as it stands in a manifest.
pub const API_VERSION: &str = "sluice.dev/v1alpha1";
/// The device class whose GPUs are backed by host memory.
pub const HOST_DEVICE_CLASS: &str = "host.sluice.dev";
/// Namespace of an object that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

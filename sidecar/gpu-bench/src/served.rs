//! Tenants as their clients meet them: real sidecars with real engines, and requests over HTTP.
//!
//! Sidecars get their configuration and their directives from this process, in place of `sluice up` or the operator:
//! so the memory of the GPU is exactly what a measurement wants.

mod calibration;
mod config;
mod error;
mod folder;
mod http;
mod load;
mod model;
mod sharing;
mod sidecar;

pub use calibration::Calibration;
pub use config::Policy;
pub use error::ServedError;
pub use folder::RunFolder;
pub use load::{Load, LoadFigures};
pub use model::ServedModel;
pub use sharing::SharedGpu;
pub use sidecar::Sidecar;

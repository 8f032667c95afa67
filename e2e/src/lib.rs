//! What tests share: a browser; and components of Kubernetes of a pinned version, started from a folder of binaries.
//!
//! A black box: it knows the CRDs and nothing else of the product. See docs/testing-cluster.md.
//!
//! Failing to start what a test needs is a failed test, so this panics with a message instead of returning errors.

pub mod browser;
pub mod cluster;
pub mod files;
pub mod hang_limit;

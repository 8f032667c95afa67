//! Shared helpers of the tests: a browser, and Kubernetes components of a pinned version, started from a folder of
//! binaries.
//!
//! It knows the CRDs of the product and nothing of its implementation. See docs/testing-cluster.md.
//!
//! A failed start of a prerequisite is a failed test, so these helpers panic with a message instead of returning
//! errors.

pub mod browser;
pub mod cluster;
pub mod files;
pub mod hang_limit;

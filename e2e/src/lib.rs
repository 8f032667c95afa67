//! Shared helpers of the tests: a browser, a hub of models, and Kubernetes components of a pinned version, started from a folder of
//! binaries.
//!
//! It knows the CRDs of the product and nothing of its implementation. See docs/testing-cluster.md.
//!
//! A failed start of a prerequisite is a failed test, so these helpers panic with a message instead of returning
//! errors.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use sluice_e2e::cluster::within;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let mut looks = 0;
//! let third = within(Duration::from_secs(10), "the third look", async || {
//!     looks += 1;
//!     (looks == 3).then_some(looks)
//! });
//! assert_eq!(third.await, 3);
//! # });
//! ```

pub mod browser;
pub mod cluster;
pub mod files;
pub mod hang_limit;
pub mod hub;

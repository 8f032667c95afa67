//! Measures a GPU with the product's memory and kernels, and compares the figures with limits.
//!
//! [`measurements`] holds the measurements, which `sluice-probe` runs in processes of their own. [`limits`] compares
//! their figures with the limits of the design, and [`report`] has the results.
//!
//! # Example
//!
//! ```
//! use sluice_gpu_bench::limits::{LIMITS, Verdict, judge};
//!
//! // Nothing is measured, so no limit is met or missed.
//! let judged = judge(&[], false);
//! assert_eq!(judged.len(), LIMITS.len());
//! assert!(judged.iter().all(|limit| matches!(limit.verdict, Verdict::Open { .. })));
//! ```

pub mod args;
pub mod device_data;
pub mod device_model;
pub mod drawings;
pub mod limits;
pub mod measurements;
pub mod products;
pub mod profile;
pub mod report;
pub mod row;
pub mod run;
pub mod scale;
pub mod served;
pub mod shapes;

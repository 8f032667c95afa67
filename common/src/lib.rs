//! Small algorithms that several crates need: a hash, random numbers, percentiles, back-off delays, a reader of
//! metrics, and figures in messages.
//!
//! This crate uses only `core` and `alloc` and has no effect. Hashes and random numbers are the same on every machine
//! and in every version: digests, journals and generated models depend on them.
//!
//! # Example
//!
//! ```
//! use sluice_common::hash::fnv1a;
//! use sluice_common::statistics::median;
//!
//! // The published hash of an empty text.
//! assert_eq!(fnv1a([0_u8; 0]), 0xcbf2_9ce4_8422_2325);
//! assert_eq!(median(&[4.0, 1.0, 3.0]), Some(3.0));
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod back_off;
pub mod hash;
pub mod metrics_text;
pub mod random;
pub mod statistics;
pub mod text;

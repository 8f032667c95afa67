//! Small algorithms that several crates need: a hash, random numbers, percentiles, back-off delays, and a reader of
//! metrics.
//!
//! This crate uses only `core` and `alloc` and has no effect. Hashes and random numbers are the same on every machine
//! and in every version: digests, journals and generated models depend on them.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod back_off;
pub mod hash;
pub mod metrics_text;
pub mod random;
pub mod statistics;

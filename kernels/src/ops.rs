//! The operations between matrix products, and how work is split over threads.

pub mod attention;
pub mod embed;
pub mod kv;
pub mod norm;
pub mod thread_pool;

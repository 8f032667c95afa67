//! The operations between matrix products, and the thread pool that splits work.

pub mod attention;
pub mod embed;
pub mod kv;
pub mod norm;
pub mod thread_pool;

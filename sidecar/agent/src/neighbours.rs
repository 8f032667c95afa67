//! The other sidecars of the GPU: asking them, and what they ask.

pub mod call;
pub mod client;

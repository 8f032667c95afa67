//! Reads a model folder in Hugging Face layout.
//!
//! Only the sidecar reads it. The engine receives a [`ModelSpec`](sluice_link::model::ModelSpec) and memory.

pub mod config;
pub mod error;
pub mod text;
pub mod token_bound;
pub mod weights;

pub use error::ModelError;

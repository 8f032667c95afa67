//! A model folder in Hugging Face layout: what it is made of and how it is read.
//!
//! The sidecar alone reads it. The engine gets a [`ModelSpec`](sluice_link::model::ModelSpec) and memory.

pub mod config;
pub mod error;
pub mod text;
pub mod token_bound;
pub mod weights;

pub use error::ModelError;

//! The engine side of Sluice: computes a model's forward pass over memory that the sidecar owns.
//!
//! * [`simd`]: dot and tile kernels, one order of summation on every path
//! * [`ops`]: norms, rotary positions, paged attention, embeddings
//! * [`forward`]: one step over a mixed batch of prefill chunks and decodes
//! * [`sampling`]: from a row of logits to a token, without state
//! * [`engine`]: the process around it, bin `sluice-engine`
//! * [`generate`]: random-weight models of any shape, as Hugging Face folders

pub mod engine;
pub mod forward;
pub mod generate;
mod llama;
pub mod ops;
mod opt;
pub mod rope;
pub mod sampling;
pub mod simd;

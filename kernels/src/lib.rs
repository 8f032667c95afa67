//! The engine side of Sluice: computes a model's forward pass over memory that the sidecar owns.
//!
//! * [`simd`]: dot and tile kernels, one order of summation on every path
//! * [`ops`]: norms, rotary positions, paged attention, embeddings
//! * [`forward`]: one step over a mixed batch of prefill chunks and decodes
//! * [`sampling`]: from a row of logits to a token, without state
//! * [`cuda`]: the CUDA kernels and their launches, as values
//! * [`engine`]: the process around it, bin `sluice-engine`
//! * [`generate`]: random-weight models of any shape, as Hugging Face folders
//!
//! # Example
//!
//! ```
//! use sluice_kernels::forward::LogitRow;
//! use sluice_kernels::sampling::{History, SamplingParams, sample};
//!
//! // A temperature of 0 takes the largest logit; a banned token is never taken.
//! let params = SamplingParams { banned_tokens: vec![2], ..SamplingParams::default() };
//! let (mut logits, mut scratch) = ([0.5, 1.5, 9.0], [0; 3]);
//! let mut row = LogitRow { logits: &mut logits, scratch: &mut scratch };
//! let choice = sample(&mut row, &params, History { tokens: &[0], prompt_tokens: 1 })?;
//! assert_eq!(choice.token, 1);
//! # Ok::<(), sluice_kernels::sampling::SamplingError>(())
//! ```

pub mod cuda;
pub mod engine;
pub mod forward;
pub mod generate;
mod llama;
pub mod ops;
mod opt;
pub mod rope;
pub mod sampling;
pub mod simd;

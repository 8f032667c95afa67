//! The CUDA kernels: their PTX, their arguments and their launches, as values. Nothing here needs CUDA, so tests run
//! the same launches by an interpreter. [`CudaModel::plan`] makes of a batch the [`StepProgram`] with its launches.
//!
//! Each file has the arguments of the kernels of one source of `kernels/cuda`, with a function that makes a
//! [`LaunchPlan`] of them; a step is a list of [`Operation`]s. Addresses are those of device memory; the caller keeps
//! them valid until the launch has ended.
//!
//! **Number formats.** The residual stream, and what lies between a product and the kernel that reads it, is f32, as in
//! the CPU engine. Weights, the inputs of products, queries and the KV cache have the model's format. K and V are
//! rounded to it before any use.
//!
//! **Bits.** Each output element has one order of summation, which depends on the model and on the element's position
//! alone: not on the batch, the chunking, the block ids or the device's order of blocks. Products of cuBLASLt
//! ([`Products::CublasLt`]) do not promise this.

mod arguments;
pub mod attention;
pub mod embedding;
pub mod gemm;
mod inputs;
pub mod memory;
mod model;
pub mod norm;
mod packed;
mod pass;
mod plan;
mod product;
mod program;
pub mod rope;
pub mod sampling;
mod step_plan;

pub use arguments::{Field, Layout};
pub use model::{CudaModel, CudaModelError};
pub use packed::{PackedStep, StepLayout};
pub use plan::{LaunchPlan, Module, ShapeError};
pub use product::{Operation, ProductPlan, Products};
pub use program::{Results, StepProgram};
pub use step_plan::DeviceRanges;

/// An address in device memory; 0 is null.
pub type Address = u64;

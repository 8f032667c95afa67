//! Tests the CUDA kernels: every kernel runs from its committed PTX by the interpreter.

mod attention;
mod device;
mod forward;
mod gemm;
mod invariance;
mod layout;
mod memory;
mod paged;
mod rope;
mod rows;
mod sampling;
mod tolerances;
mod values;

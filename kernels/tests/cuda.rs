//! Tests the CUDA kernels of `kernels/cuda`.

#[allow(dead_code, reason = "the kernels that these bounds judge follow")]
mod tolerances;

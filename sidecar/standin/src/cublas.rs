//! cuBLASLt: descriptors, the checks of a product, and the product itself.

pub mod descriptor;
mod epilogue;
pub mod matmul;
pub mod number;
pub mod plan;
mod product;
pub mod status;

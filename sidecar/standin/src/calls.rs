//! The driver's functions, by subject.

mod capture;
mod context;
mod copy;
mod cublas;
mod device;
mod event;
mod function;
mod graph;
mod host;
mod memory;
mod module;
mod pointer;
mod stream;
mod symbol;

/// Names the library: a program that measures time sees by this function that there is no GPU.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_cuda_standin() {}

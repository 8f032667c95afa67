//! The driver's objects, each freed on drop. An object that belongs to a context holds the context.

pub mod context;
pub mod device;
pub mod graph;
pub mod host;
pub mod kernels;
pub mod launch;
pub mod memory;
pub mod stream;

pub use context::{Context, MemoryInfo};
pub use device::CudaDevice;
pub use graph::{ExecGraph, GraphBuilder};
pub use host::HostMemory;
pub use kernels::Kernels;
pub use launch::{Argument, Function, Grid, KernelLaunch, Module};
pub use memory::{Buffer, Handle, Range};
pub use stream::{CudaEvent, CudaStream};

/// An address in the device's address space.
pub type Address = u64;

//! The driver's objects, each freed on drop. An object that belongs to a context holds the context.
//!
//! The driver is loaded at run time by [`CudaDriver::open`], so a build needs nothing of CUDA. A machine without the
//! driver gets [`Error::NoDriver`].

pub mod context;
pub mod device;
pub mod driver;
mod error;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod pinned;
pub mod stream;

pub use context::{Context, MemoryInfo};
pub use device::CudaDevice;
pub use driver::CudaDriver;
pub use error::Error;
pub use graph::{ExecGraph, GraphBuilder};
pub use launch::{Argument, Function, Grid, KernelLaunch, Module};
pub use memory::{Buffer, Handle, Range};
pub use pinned::PinnedMemory;
pub use stream::{CudaEvent, CudaStream};

/// An address in the device's address space.
pub type Address = u64;

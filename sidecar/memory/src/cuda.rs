//! The driver's objects, each freed on drop. An object that belongs to a context holds the context.
//!
//! The driver is loaded at run time by [`Driver::open`], so a build needs nothing of CUDA. A machine without the
//! driver gets [`Error::NoDriver`].

pub mod buffer;
pub mod chunk;
pub mod context;
pub mod cublaslt;
pub mod device;
pub mod driver;
mod error;
pub mod graph;
pub mod launch;
pub mod pinned;
pub mod range;
mod registration;
pub mod stream;

pub use buffer::Buffer;
pub use chunk::{Chunk, granularity};
pub use context::{Context, MemoryInfo};
pub use cublaslt::CublasLt;
pub use device::Device;
pub use driver::Driver;
pub use error::Error;
pub use graph::{ExecGraph, GraphBuilder};
pub use launch::{Argument, Function, Grid, KernelLaunch, Module};
pub use pinned::PinnedMemory;
pub use range::{Mapping, Range};
pub(crate) use registration::Registration;
pub use stream::{Event, Stream};

/// An address in the device's address space.
pub type Address = u64;

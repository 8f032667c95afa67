//! An interpreter of the PTX that our kernels use, so that tests execute the file that a driver will load. It is for
//! tests alone and never shipped.
//!
//! A [`Module`] is a parsed text: every opcode, modifier and directive that the interpreter does not know is an error
//! there. [`launch()`] runs a [`Kernel`] over [`GlobalMemory`], the 32 lanes of a warp at once and blocks on several threads
//! of the host. An [`Arena`] is device memory for tests.
//!
//! ```
//! use sluice_ptx::{Arena, Launch, Module, Options, launch};
//!
//! let text = "
//! .version 8.0
//! .target sm_80
//! .address_size 64
//! .visible .entry twice(.param .u64 values)
//! {
//!     .reg .b32 %r<3>;
//!     .reg .b64 %rd<3>;
//!     ld.param.u64 %rd1, [values];
//!     mov.u32 %r1, %tid.x;
//!     mad.wide.u32 %rd2, %r1, 4, %rd1;
//!     ld.global.u32 %r2, [%rd2];
//!     shl.b32 %r2, %r2, 1;
//!     st.global.u32 [%rd2], %r2;
//!     ret;
//! }";
//! let module = Module::parse(text)?;
//! let kernel = module.kernel("twice").expect("the kernel of the text");
//! let mut arena = Arena::new();
//! let values = arena.alloc_with(&[1u32, 2, 3, 4]);
//! let params = values.to_le_bytes();
//! let four_threads = Launch { grid: [1, 1, 1], block: [4, 1, 1], dynamic_shared_bytes: 0, params: &params };
//! let stats = launch(kernel, &four_threads, &arena, &Options::default())?;
//! assert_eq!(arena.read::<u32>(values, 4), [2, 4, 6, 8]);
//! assert_eq!((stats.warp_instructions, stats.thread_instructions), (7, 28));
//!
//! // A fifth thread would write past the end.
//! let five_threads = Launch { block: [5, 1, 1], ..four_threads };
//! let fault = launch(kernel, &five_threads, &arena, &Options::default()).unwrap_err();
//! assert_eq!((fault.place.line, fault.place.thread), (12, Some([4, 0, 0])));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is computed as on a GPU, and what is not
//!
//! Integers, and floats rounded by `.rn`, `.rz`, `.rm` and `.rp`, have the bits that PTX specifies, NaN of f32 included
//! (0x7fffffff). These do not:
//!
//! - `ex2`, `lg2`, `sin`, `cos`, `tanh` and other `.approx` forms are computed nearly exactly; a GPU's last bits are its
//!   own.
//! - `mma.sync` multiplies exactly and adds in f32 in the order of k, rounded to nearest after each addition. A GPU adds
//!   several products at once and rounds toward zero.
//! - Lanes run in an order of their own, and a block's warps in the order of [`Options::warp_order_seed`]. A copy by
//!   `cp.async` arrives when it is waited for.
//! - `%clock` counts nanoseconds, `nanosleep` does not sleep, hints to caches do nothing.
//!
//! The results do not depend on the machine: code for AVX2, portable code and code for other architectures give the same
//! bits.
#![allow(clippy::needless_range_loop, reason = "one number of a lane indexes several vectors")]

mod arena;
mod barriers;
mod block;
mod check;
mod copies;
mod decode;
mod fault;
mod float;
mod grid;
mod image;
mod instruction;
mod lanes;
mod launch;
mod lex;
mod memory;
mod module;
mod operation;
mod ops;
mod parse;
mod parse_error;
mod place;
mod profile;
mod scope;
mod slots;
mod statement;
mod traffic;
mod types;
mod view;
mod warp;
mod windows;

pub use arena::{Arena, Plain};
pub use fault::{Access, Fault, FaultKind, Place, Space};
pub use grid::launch;
pub use launch::{BLOCK_LIMIT, Launch, Mode, Options, SHARED_LIMIT, STATIC_SHARED_LIMIT, Stats};
pub use memory::{Extent, GlobalMemory};
pub use module::{Kernel, Module, Param};
pub use parse_error::ParseError;
pub use traffic::{SourceLine, Traffic};

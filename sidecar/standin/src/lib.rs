//! A stand-in for `libcuda.so.1` and `libcublasLt.so` over host memory, for tests of code that calls the CUDA driver. It
//! is never shipped.
//!
//! It implements the driver's bookkeeping: contexts, physical handles that are files and are passed to other processes
//! as descriptors, address ranges, mappings, registrations, streams with a thread each, events, captures and graphs.
//! Kernels are the PTX of the module, run by the interpreter `sluice-ptx`. It does not model time: a copy runs at the
//! speed of host memory, and a kernel at the speed of an interpreter.
//!
//! A device address is a host address with bit 56 set: the kernel kills a process that dereferences one by accident, so
//! tests detect it. Host memory that is registered or allocated by the driver has the same address on the device.
//!
//! | variable | meaning |
//! |---|---|
//! | `SLUICE_STANDIN_POOL` | the folder of the device's memory, shared by processes; if unset, there is no device |
//! | `SLUICE_STANDIN_BYTES` | device memory in bytes (4 GiB) |
//! | `SLUICE_STANDIN_GRANULARITY` | granularity of device memory in bytes (2 MiB), for tests of many small chunks |
//! | `SLUICE_STANDIN_FAULTS` | `CALL=CODE`, comma-separated: the call fails with it; `CALL=drop`: it does nothing; `CALL=CODE@N`: only its Nth call |
//! | `SLUICE_STANDIN_DRIVER` | the driver that it poses as: 12.0, 12.4 (default), 12.8 or 13.0; it refuses newer PTX |
//! | `SLUICE_STANDIN_MPS_FAULTS` | more faults, in processes whose `CUDA_MPS_PIPE_DIRECTORY` has a daemon's `control` |
//! | `SLUICE_STANDIN_ATTRIBUTES` | `NUMBER=VALUE`, comma-separated: device attributes that differ from the defaults |
//! | `CUDA_MODULE_LOADING` | as for the driver: unless `EAGER`, a kernel's first launch waits for all streams |
//! | `SLUICE_STANDIN_CHECKED` | `1`: kernels run with all checks of the interpreter, some 10 to 70 times slower |
//! | `SLUICE_STANDIN_WORKERS` | threads that run the blocks of a kernel (1) |
//! | `SLUICE_STANDIN_BLOCKS` | `KERNEL=N`, comma-separated: only N blocks run, for kernels that only take time |
//! | `SLUICE_STANDIN_REPORT` | a file: each process appends one line of JSON with the resources that it holds at exit |
//! | `SLUICE_STANDIN_TRACE` | a file: each call that no fault replaces appends its thread, name and arguments |
//!
//! cuBLASLt is the same library under a second name, as [`library_folder::LibraryFolder`] makes it. Its products add in
//! f32 in one order, whatever the shape. It checks what the library documents: handles, formats, leading dimensions,
//! alignment of pointers, workspace.
//!
//! # Example
//!
//! ```
//! use sluice_cuda_standin as _;
//!
//! unsafe extern "C" {
//!     fn cuInit(flags: u32) -> u32;
//! }
//!
//! // SAFETY: it takes a number, and other calls may follow on any thread.
//! let code = unsafe { cuInit(0) };
//! // Without SLUICE_STANDIN_POOL there is no device, as on a machine without a GPU.
//! assert_eq!(code, 100);
//! ```

#![allow(non_snake_case, reason = "the driver's functions have their names")]

mod abi;
mod address_space;
mod call_guard;
mod calls;
mod capture;
mod code_text;
mod cublas;
mod current_context;
mod device_memory;
mod documented_codes;
mod driver_pose;
mod enqueue;
mod env_config;
mod event;
mod function;
mod graph;
mod injected_fault;
mod kernels;
pub mod leak_report;
pub mod library_folder;
mod objects;
mod operation;
mod pool;
mod ptx_header;
mod stream;
pub mod test_machine;
mod trace;
mod transfer;
mod wait_until;
mod word_operation;

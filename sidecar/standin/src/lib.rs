//! A stand-in for `libcuda.so.1` over host memory, for tests of what talks to the CUDA driver. It is never shipped.
//!
//! It keeps the driver's books: contexts, physical handles that are files and go to other processes as descriptors,
//! address ranges, mappings, registrations, streams with a thread each, events, graphs. Kernels are known by the names
//! of `sidecar/probe/cuda/probe.cu` and are Rust functions here. It says nothing about time: a copy takes what the
//! host's memory takes, and a kernel what one core takes.
//!
//! A device address is a host address with bit 56 set: whoever dereferences one by accident is ended by the kernel, and
//! so is found. Host memory that is registered or allocated by the driver keeps its address on the device.
//!
//! | variable | meaning |
//! |---|---|
//! | `SLUICE_STANDIN_POOL` | the folder of the device's memory, shared by processes; without it there is no device |
//! | `SLUICE_STANDIN_BYTES` | device memory in bytes (4 GiB) |
//! | `SLUICE_STANDIN_FAULTS` | `CALL=CODE`, comma-separated: that call always fails so; `CALL=drop`: it succeeds and does nothing |
//! | `SLUICE_STANDIN_ATTRIBUTES` | `NUMBER=VALUE`, comma-separated: device attributes that differ |
//! | `CUDA_MODULE_LOADING` | as the driver's: unless `EAGER`, a kernel's first launch waits for all streams |
//! | `SLUICE_STANDIN_REPORT` | a file: at its exit each process appends one line of JSON with what it still held |

#![allow(non_snake_case, reason = "the driver's functions have their names")]

mod abi;
mod address_space;
mod call_guard;
mod calls;
mod env_config;
mod event;
mod graph;
mod kernels;
mod leak_report;
mod objects;
mod operation;
mod pool;
mod stream;

//! The driver's functions, by subject.

mod context;
mod copy;
mod cublas;
mod device;
mod event;
mod graph;
mod host;
mod memory;
mod module;
mod stream;

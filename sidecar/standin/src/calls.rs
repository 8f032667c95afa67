//! The driver's functions, by what they are about.

mod context;
mod copy;
mod device;
mod event;
mod graph;
mod host;
mod memory;
mod module;
mod stream;

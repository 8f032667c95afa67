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

//! The real `sluice-engine` process under a sidecar in miniature: real sockets, real signals, real `/proc`.

mod faults;
mod fetches;
mod hangs;
mod harness;
mod lifecycle;
mod smaps;
mod steps;
mod time_slice;

//! Tests of the real `sluice-engine` process with a minimal sidecar: real sockets, real signals, real `/proc`.

mod cuda;
mod faults;
mod fetches;
mod hangs;
mod harness;
mod lifecycle;
mod pool;
mod smaps;
mod steps;
mod time_slice;

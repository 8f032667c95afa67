//! Black-box tests: the driver's process, a kubelet played by its own gRPC calls, an API server played over HTTP.

// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod capabilities;
mod claims;
mod node;
mod server;
mod slices;
mod start;

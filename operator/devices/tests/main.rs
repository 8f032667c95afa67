//! Black-box tests: the driver's process, with gRPC calls of a fake kubelet and a fake API server over HTTP.

// Helpers outside test functions also unwrap.
#![allow(clippy::unwrap_used)]

mod capabilities;
mod claims;
mod node;
mod proto;
mod server;
mod slices;
mod start;

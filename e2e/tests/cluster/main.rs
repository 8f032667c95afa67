//! The CRDs on a real API server.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod server;

//! Modules of the operator against stubs: an API server in memory, sidecars over real TLS.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod api;
mod contest;
mod credentials;
mod keeper;
mod real;
mod sidecars;
mod stub;

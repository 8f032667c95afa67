//! Tests modules of the operator against stubs: an API server in memory, sidecars over real TLS.
// Helpers outside test functions also unwrap.
#![allow(clippy::unwrap_used)]

mod certificate_manager;
mod credentials;
mod fake_api_server;
mod leader_conflict;
mod sidecar_process;
mod sidecars;
mod stub;

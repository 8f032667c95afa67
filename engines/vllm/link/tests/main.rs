//! Tests of the C functions against the server end of the link, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

mod c_link;
mod cuda;
mod host_sidecar;
mod json_table;
mod processes;
mod scheduler;
mod worker;

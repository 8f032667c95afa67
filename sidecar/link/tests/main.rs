//! Tests of the link, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

mod control;
mod corpus;
mod external_strategies;
mod handshake;
mod kv_layout;
mod leases;
mod messages;
mod passes;
mod process_exit;
mod scheduler_link;
mod strategies;
mod tables;
mod worker_link;

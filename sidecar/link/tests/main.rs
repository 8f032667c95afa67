//! Tests of the link, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

mod control;
mod corpus;
mod handshake;
mod messages;
mod passes;
mod process_exit;
mod strategies;
mod tables;

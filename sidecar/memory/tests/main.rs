//! Host memory behind the port, with an engine that sees it through its own mappings on a thread of its own.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

mod beside;
mod conformance;
mod copies;
mod hand_over;
mod mapping;
mod neighbourhood;
mod ordering;
mod pool;
mod quota;
mod tier;
mod world;

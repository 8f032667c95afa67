//! Tests of the interpreter, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

mod faults;
mod launches;
mod probe;
mod support;

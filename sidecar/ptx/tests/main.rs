//! Tests of the interpreter, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

mod probe;
mod support;

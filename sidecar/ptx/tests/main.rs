//! Tests of the interpreter, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]
#![allow(clippy::needless_range_loop, reason = "lanes and rows are numbers of several vectors")]
#![allow(clippy::manual_clamp, reason = "`.sat` makes NaN zero, which `clamp` does not")]

mod arithmetic;
mod collectives;
mod faults;
mod halves;
mod launches;
mod parser;
mod probe;
mod profile;
mod support;

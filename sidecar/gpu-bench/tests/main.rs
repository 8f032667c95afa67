//! Tests of the benchmark's binary: without a driver, and over the stand-in for the driver. They do not test times.

mod command;
mod standin;

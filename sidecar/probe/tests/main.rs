//! Tests of the probe's command-line behavior on a machine without a GPU.

mod command;
mod report;
mod standin;

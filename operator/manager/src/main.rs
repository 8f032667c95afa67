//! `sluice-operator`: places tenants, applies their objects, and reports their status.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    sluice_operator::run(sluice_operator::Args::parse())
}

//! `sluice-gpu-probe`: says what a GPU can do.

use std::process::ExitCode;

use clap::Parser;
use sluice_probe::args::Args;

fn main() -> ExitCode {
    sluice_probe::run::main(&Args::parse())
}

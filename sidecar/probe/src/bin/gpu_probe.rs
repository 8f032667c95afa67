//! `sluice-gpu-probe`: reports the capabilities of a GPU.

use std::process::ExitCode;

use clap::Parser;
use sluice_probe::args::Args;

fn main() -> ExitCode {
    sluice_probe::run::main(&Args::parse())
}

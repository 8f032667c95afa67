//! `sluice-gpu-probe`: reports the capabilities of a GPU.

use std::process::ExitCode;

use clap::Parser;
use sluice_probe::args::ProbeArgs;

fn main() -> ExitCode {
    sluice_probe::run::main(&ProbeArgs::parse())
}

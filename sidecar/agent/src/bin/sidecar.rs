//! `sluice-sidecar`: serves one tenant slot.

use std::process::ExitCode;

use clap::Parser;
use sluice_agent::args::Args;
use sluice_agent::run::Failure;

fn main() -> ExitCode {
    let args = Args::parse();
    sluice_agent::args::init_logging(&args);
    match sluice_agent::run::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Reported) {
                let name = args.log_name.map(|name| format!("{name}: ")).unwrap_or_default();
                eprintln!("sluice-sidecar: {name}{failure:#}");
            }
            failure.exit_code()
        }
    }
}

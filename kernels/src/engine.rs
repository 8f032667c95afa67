//! The engine process: a worker that computes steps for one sidecar, under a supervisor that restarts it.
//!
//! The worker owns nothing and remembers nothing between steps. It maps chunks where it is told, runs steps over them,
//! and ends itself within 100 ms of its sidecar's death, even inside a step (DESIGN 4, 5).

mod inputs;
mod liveness;
mod logs;
mod memory;
mod options;
mod sidecar_watch;
mod step;
mod supervisor;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use options::Options;

/// Exit status of a worker whose sidecar said goodbye: there is nothing left to do.
const EXIT_GOODBYE: u8 = 0;
/// Exit status of a worker whose sidecar has gone without a word. A successor waits for the next sidecar.
const EXIT_SIDECAR_GONE: u8 = 75;

/// Exit status of a worker whose mappings are neither the old nor the new ones. A successor maps everything afresh.
const EXIT_MAPPING_TORN: u8 = 70;

/// The definition of the command line.
pub fn command() -> clap::Command {
    Options::command()
}

/// The process: parses the arguments and runs supervisor or worker.
pub fn main() -> ExitCode {
    let options = Options::parse();
    logs::start();
    let ended = match options.role() {
        options::Role::Supervisor => supervisor::run(&options),
        options::Role::Worker => worker::run(&options),
    };
    ended.unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}

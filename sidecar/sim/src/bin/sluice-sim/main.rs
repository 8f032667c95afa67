//! `sluice-sim`: experiments and estimates without a GPU, by the policy that runs in production.

mod args;
mod data;
mod estimate;
mod output;
mod progress;
mod replay;
mod run;
mod serve;
mod soak;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Command, SimArgs};

fn main() -> ExitCode {
    let done = match SimArgs::parse().command {
        Command::List => run::list(),
        Command::Tunables => run::tunables(),
        Command::Run(args) => run::run(&args),
        Command::ServeTrace(args) => serve::serve(&args),
        Command::Soak(args) => soak::soak(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Estimate(args) => estimate::estimate(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::print_status(&format!("sluice-sim: {error:#}"));
            ExitCode::from(2)
        }
    }
}

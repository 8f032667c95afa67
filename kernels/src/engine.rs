//! The engine process: a worker that computes steps for one sidecar, under a supervisor that restarts it.
//!
//! The worker owns nothing and keeps no state between steps. It maps the chunks that the sidecar names and runs steps
//! over them. It exits within 100 ms of its sidecar's exit, even inside a step.

mod cuda_device;
mod device;
mod exit_code;
mod host_device;
mod inputs;
mod layer_times;
mod layer_waits;
mod liveness;
mod logs;
mod memory;
mod options;
mod sidecar_watch;
mod step;
mod step_error;
mod supervisor;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

pub use cuda_device::CudaKernels;
use options::Options;

/// Returns the definition of the command line.
pub fn command() -> clap::Command {
    Options::command()
}

/// Parses the arguments and runs the supervisor or the worker.
pub fn main() -> ExitCode {
    let options = Options::parse();
    let ended = match options.role() {
        options::Role::Supervisor => {
            logs::start();
            supervisor::run(&options)
        }
        options::Role::Worker => {
            load_kernels_eagerly();
            logs::start();
            worker::run(&options)
        }
    };
    ended.unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}

/// Makes the driver load kernels with their module. Otherwise it may wait for all streams when a kernel is used first, and
/// a kernel that waits for a copy keeps its stream busy.
fn load_kernels_eagerly() {
    // SAFETY: no other thread exists yet that could read or write the environment.
    unsafe { std::env::set_var("CUDA_MODULE_LOADING", "EAGER") };
}

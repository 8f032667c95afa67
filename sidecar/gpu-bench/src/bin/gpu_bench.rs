//! `sluice-gpu-bench`: measures a GPU with the product's memory and kernels.

use std::process::ExitCode;

use clap::Parser;
use sluice_gpu_bench::args::BenchArgs;

fn main() -> ExitCode {
    sluice_gpu_bench::run::main(&BenchArgs::parse())
}

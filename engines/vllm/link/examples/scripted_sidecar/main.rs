//! A stand-in for the sidecar of a vLLM engine, for tests of its Python package: the real server end of the link, a pool
//! of host memory, the master copies of layers and their copier. It reads commands as lines and prints JSON lines.
//!
//! ```text
//! scripted_sidecar SOCKET --layer-chunks 3x30 [--chunk-bytes N] [--capacity N] [--kv-chunks N] [--extents N]
//! ```
#![allow(clippy::print_stdout, reason = "its output is its interface")]

mod commands;
mod connections;
mod copier;
mod options;
mod pool;
mod state;

use std::io::{BufRead, stdin};
use std::sync::Arc;

use commands::run;
use options::Options;
use state::Sidecar;

fn main() -> anyhow::Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let sidecar = Arc::new(Sidecar::new(options)?);
    connections::start(&sidecar)?;
    for line in stdin().lock().lines() {
        let line = line?;
        if line.trim() == "exit" {
            break;
        }
        run(&sidecar, line.trim());
    }
    Ok(())
}

//! The command line of the benchmark.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use sluice_probe::bench::ProbeOptions;
use sluice_probe::checks::CheckId;

use crate::measurements::SUITE;

static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} (commit {})", env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT")));

/// Measures what a GPU does with the memory and the kernels of Sluice, and compares it with the limits of the design.
///
/// The report goes to stdout, progress to stderr. Every measurement runs in a process of its own and takes at most the
/// device memory that `--list` names; the GPU should otherwise be idle.
///
/// Exit status: 0 when everything was measured, within its limits or not; 1 when something could not be; 2 for wrong
/// arguments; 3 when there is no usable CUDA driver; 4 when there is no such device.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice-gpu-bench", version = VERSION.as_str(), args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Which of the driver's devices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: u32,
    /// Only these measurements, by number or name.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = measurement)]
    pub only: Vec<CheckId>,
    /// Print the measurements and end.
    #[arg(long)]
    pub list: bool,
    /// Fewer samples and smaller sizes.
    #[arg(long)]
    pub quick: bool,
    /// Write the report here as JSON; `-` for stdout, in place of the text. A file is written after each measurement.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Keep what the file of `--json` says was measured, by the same program on the same device, and measure the rest.
    #[arg(long, requires = "json")]
    pub resume: bool,
    /// Draw `link.svg`, `attention.svg`, `remap.svg`, `models.svg` and `tenants.svg` into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub svg: Option<PathBuf>,
    /// Write the measured machine here, as a profile for `sluice-sim --profile`; needs `link` and `attention`.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// What the benchmark starts itself as.
    #[command(subcommand)]
    pub part: Option<Part>,
}

/// Parts of the benchmark that it starts itself.
#[derive(Clone, Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum Part {
    /// A process that measures, or one next to it.
    #[command(hide = true)]
    Child {
        /// What it does.
        role: String,
        /// Which of the driver's devices.
        #[arg(long)]
        device: u32,
        /// Fewer samples and smaller sizes.
        #[arg(long)]
        quick: bool,
    },
}

fn measurement(word: &str) -> Result<CheckId, String> {
    SUITE.parse_id("measurements", word)
}

impl BenchArgs {
    /// Returns the parameters of the measurements.
    pub fn setup(&self) -> ProbeOptions {
        ProbeOptions { ordinal: self.device, quick: self.quick }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        BenchArgs::command().debug_assert();
    }
}

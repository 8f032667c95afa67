//! The probe's command line.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};

use crate::bench::ProbeOptions;
use crate::{checks, questions};

static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} (commit {})", env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT")));

/// Asks a GPU whether it does what Sluice needs, and says what to expect of it.
///
/// The answers go to stdout, progress to stderr. Every question runs in a process of its own and takes at most the
/// device memory that `--list` names; the GPU should otherwise be idle. A whole run ends within 8 minutes, `--quick`
/// within one.
///
/// Exit status: 0 when every question was answered, yes or no; 1 when one could not be; 2 for wrong arguments; 3 when
/// there is no usable CUDA driver; 4 when there is no such device.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice-gpu-probe", version = VERSION.as_str(), args_conflicts_with_subcommands = true)]
pub struct ProbeArgs {
    /// Which of the driver's devices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: u32,
    /// Only these questions, by number or name.
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_parser = questions::parse_id)]
    pub only: Vec<checks::CheckId>,
    /// Print the questions and end.
    #[arg(long)]
    pub list: bool,
    /// Fewer samples and smaller sizes.
    #[arg(long)]
    pub quick: bool,
    /// Write the report here as JSON; `-` for stdout, in place of the text.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What the probe starts itself as.
    #[command(subcommand)]
    pub part: Option<Part>,
}

/// Parts of the probe that it starts itself.
#[derive(Clone, Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum Part {
    /// A process next to the one that asks.
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

impl ProbeArgs {
    /// Returns the parameters of the checks.
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
        ProbeArgs::command().debug_assert();
    }

    #[test]
    fn version_names_the_commit() {
        let version = ProbeArgs::command().render_version();
        assert!(version.starts_with("sluice-gpu-probe 0.1.0 (commit "), "{version}");
    }
}

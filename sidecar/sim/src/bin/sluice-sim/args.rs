//! The command line.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Parser, Subcommand, ValueEnum};
use sluice_sim::profiles::cost::Launch;

static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} (commit {})", env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT")));

/// Experiments and estimates without a GPU, by the policy that runs in production.
#[derive(Debug, Parser)]
#[command(name = "sluice-sim", version = VERSION.as_str(), max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Names every experiment, machine and model.
    List,
    /// Runs an experiment and compares it with the paper. Exits with 1 if a figure differs.
    Run(RunArgs),
    /// Says what remapping would gain: r, and how many layers can be given away without a stall.
    Estimate(EstimateArgs),
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The experiment (see `list`).
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Also write the comparison as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also draw the figure as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct EstimateArgs {
    /// The model (see `list`); every one when left out.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The machine (see `list`); every one when left out.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Sequences that decode together.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batch: u64,
    /// Tokens of context of each.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    pub context: u64,
    /// How kernels are launched.
    #[arg(long, value_enum, default_value_t = LaunchArg::Graph)]
    pub launch: LaunchArg,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LaunchArg {
    /// Captured graphs.
    Graph,
    /// The host, kernel by kernel.
    Eager,
}

impl From<LaunchArg> for Launch {
    fn from(launch: LaunchArg) -> Launch {
        match launch {
            LaunchArg::Graph => Launch::Graph,
            LaunchArg::Eager => Launch::Eager,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Args;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }
}

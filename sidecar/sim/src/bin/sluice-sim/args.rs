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
pub struct SimArgs {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Names every experiment, machine and model.
    List,
    /// Names every number of the policy that can be set, with its default.
    Tunables,
    /// Runs an experiment and compares it with the paper. Exits with 1 if a figure differs and no reason is stated for
    /// it.
    Run(RunArgs),
    /// Serves one load under several policies, side by side, by models of published size on a published machine.
    ServeTrace(Box<ServeArgs>),
    /// Random tenants on a random GPU under random troubles, from seeds. Exits with 1 if a requirement does not hold.
    Soak(SoakArgs),
    /// Injects a journal that a sidecar recorded and compares digests. Exits with 1 at the first difference.
    Replay(ReplayArgs),
    /// Says what remapping would gain: r, and how many layers can be given away without a stall.
    Estimate(EstimateArgs),
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The experiment (see `list`).
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Where trace files are looked for, and in its folder `data`.
    #[arg(long, value_name = "DIR", env = "SLUICE_SHARED", default_value = "../shared")]
    pub data: PathBuf,
    /// Read the last third of every trace file, which is held back, instead of the rest.
    #[arg(long)]
    pub held_back: bool,
    /// Requests of each run of an experiment over time.
    #[arg(long, value_name = "N", default_value_t = 900, value_parser = parse_count)]
    pub requests: usize,
    /// Of everything that is random.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// How many seeds an experiment takes that compares over them; fewer than 20 prove nothing.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Also write the comparison as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also draw the figure as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Arrivals: a trace file, or `poisson` or `gamma` (with `--rate`).
    #[arg(long, value_name = "FILE")]
    pub trace: String,
    /// Lengths: files of lengths or traces, in the order of tenants; those of the trace when left out.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub lengths: Vec<String>,
    /// Where files are looked for that are not found as they are given, and in its folder `data`.
    #[arg(long, value_name = "DIR", env = "SLUICE_SHARED", default_value = "../shared")]
    pub data: PathBuf,
    /// Read the last third of every file, which is held back, instead of the rest.
    #[arg(long)]
    pub held_back: bool,
    /// Each tenant has its own stretch of the trace, so that bursts come apart; else requests are dealt by lot.
    #[arg(long)]
    pub apart: bool,
    /// Requests per second, over all tenants; the trace's own when left out.
    #[arg(long, value_name = "RATE", value_parser = parse_positive)]
    pub rate: Option<f64>,
    /// That many times as many requests per second.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = parse_positive)]
    pub scale: f64,
    /// Of `gamma`: standard deviation of gaps over their mean.
    #[arg(long, value_name = "CV", default_value_t = 4.0, value_parser = parse_positive)]
    pub cv: f64,
    /// Requests at most.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = parse_count)]
    pub requests: usize,
    /// Longer prompts are cut to this number of tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = u32::MAX, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_cap: u32,
    /// The machine (see `list`), or a file that `sluice-gpu-bench --profile` wrote.
    #[arg(long, value_name = "NAME|FILE.json")]
    pub profile: String,
    /// The models (see `list`).
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    pub model: Vec<String>,
    /// Tenants: the models in turn. As many as models when left out.
    #[arg(long, value_name = "N")]
    pub tenants: Option<usize>,
    /// Memory that each tenant holds without asking, percent of the machine's; its weights and equal parts of the rest
    /// when left out.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    pub share: Vec<u32>,
    /// The policies (see `list`); every one when left out.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Sets a number of the policies (see `tunables`) for all tenants.
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_setting, conflicts_with = "held_back")]
    pub set: Vec<(String, u64)>,
    /// How tenants share the machine.
    #[arg(long, value_enum, default_value_t = SharingArg::Temporal)]
    pub sharing: SharingArg,
    /// Of `temporal`: the longest turn while others wait, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub quantum_ms: u64,
    /// Objective: until the first token, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    pub ttft_ms: u64,
    /// Objective: between two tokens, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub tbt_ms: u64,
    /// Sequences that run at once in each tenant, at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_sequences: u32,
    /// Unit of memory. A coarser one makes long runs faster and the memory of small models less even.
    #[arg(long, value_name = "MIB", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub chunk_mib: u64,
    /// KV of each tenant on the device at most, GiB; as much as there is when left out.
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub kv_gib: Option<u64>,
    /// Host memory for KV of each tenant, GiB; equal parts of what the machine has left after all weights when left
    /// out.
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u64).range(0..=1_048_576))]
    pub host_kv_gib: Option<u64>,
    /// How kernels are launched.
    #[arg(long, value_enum, default_value_t = LaunchArg::Graph)]
    pub launch: LaunchArg,
    /// Of everything that is random.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Also write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also draw tokens over time as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

fn parse_setting(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = value.parse().map_err(|_| format!("`{value}` is not a whole number"))?;
    Ok((name.to_owned(), value))
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SharingArg {
    /// One at a time.
    Temporal,
    /// All at once.
    Spatial,
    /// Each in its fixed part.
    Isolated,
}

#[derive(Debug, clap::Args)]
pub struct SoakArgs {
    /// How many seeds.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// The first one.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub from: u64,
    /// Plant a bug in the simulated body, which the checks have to find: slot-too-early, ready-too-early, flipped-byte,
    /// kept-mapping, lost-earmark.
    #[arg(long, value_name = "BUG")]
    pub plant: Option<String>,
    /// Record every tenant and print a digest of all commands and notices: two builds that decide the same print the
    /// same.
    #[arg(long)]
    pub decisions: bool,
}

#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// What the sidecar wrote.
    #[arg(value_name = "JOURNAL")]
    pub journal: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct EstimateArgs {
    /// The model (see `list`); every one when left out.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The machine (see `list`), or a file that `sluice-gpu-bench --profile` wrote; every one of the list when left out.
    #[arg(long, value_name = "NAME|FILE.json")]
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

    use super::SimArgs;

    #[test]
    fn command_line_definition_is_valid() {
        SimArgs::command().debug_assert();
    }
}

//! The command line: one definition for parsing, help, completion and man pages.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::bench::{self, BenchArgs};
use crate::demo::{self, DemoArgs};
use crate::explain::{self, ExplainArgs};
use crate::models::{self, ModelsArgs};
use crate::plan::{self, PlanArgs};
use crate::run::{self, RunArgs};
use crate::sleep::{self, SleepArgs, TenantArgs};
use crate::top::{self, TopArgs};
use crate::up::{self, UpArgs};
use crate::{EX_CONFIG, Misconfigured, print, sibling_binaries, terminal};

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (api, wire) = (sluice_types::API_VERSION, sluice_wire::state::VERSION);
    format!("{} (commit {}, API {api}, wire {wire})", env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT"))
});

/// Name of the program as a kubectl plugin.
pub const KUBECTL_PLUGIN: &str = "kubectl sluice";

/// Run LLM tenants whose device memory flows to the tenant that needs it, watch them, measure them.
#[derive(Debug, Parser)]
#[command(name = "sluice", version = VERSION.as_str(), arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how three models share one GPU made of host memory under bursts of load, with lending and with fixed
    /// partitions.
    ///
    /// Measures the machine, opens a live page, plays a day under both rules, and ends with a table and what it
    /// means.
    /// It needs no model and no GPU. Exit status 1 says that it was interrupted, that a request failed, or
    /// that an
    /// answer differed between the rules.
    Demo(DemoArgs),
    /// Serve models by name: download them, choose the memory, serve all on one port, and chat.
    ///
    /// Models share one GPU made of host memory, and idle ones lend theirs. Exit status 78 says that trying again
    /// will
    /// not help: no such model, an architecture that is not served, too little memory.
    Run(RunArgs),
    /// List the models that `sluice run` has downloaded, or remove some.
    Models(ModelsArgs),
    /// Run the tenants of a YAML file as local processes.
    ///
    /// Prints one line `ready NAMESPACE/NAME URL` on stdout when a tenant serves. Everything else goes to stderr. Exit
    /// status 78 says that the configuration cannot be used.
    Up(UpArgs),
    /// Show what the operator would do with the tenants of YAML files, before you apply them.
    ///
    /// Which GPU each slot would get, what it would hold there, and what does not fit and why; with --before or a
    /// cluster also whose pods the change would replace. Exit status 1 says that a slot would not be served.
    Plan(PlanArgs),
    /// Show the memory and the performance of running tenants.
    Top(TopArgs),
    /// Show why a tenant does not run, is slow, or has lent its memory.
    Explain(ExplainArgs),
    /// Put a tenant of this machine to sleep: it releases all its device memory until `sluice wake`.
    ///
    /// Waits until the tenant is asleep, and prints how much memory that freed. Requests do not wake the tenant;
    /// they
    /// wait, at most `limits.holdSeconds`.
    Sleep(SleepArgs),
    /// Wake a tenant of this machine that sleeps.
    ///
    /// Waits until the tenant is awake. Its layers may still be on their way then: each step waits for those that
    /// it
    /// needs.
    Wake(TenantArgs),
    /// Send requests to any OpenAI-compatible endpoint and report latency and throughput.
    Bench(BenchArgs),
    /// Check what the GPUs of this machine support (starts sluice-gpu-probe).
    GpuProbe {
        /// Passed on: `--device N` (which GPU), `--only ROW[,ROW]` (these questions), `--list` (print the questions),
        /// `--quick` (fewer samples), `--json FILE` (the report as JSON, `-` for stdout).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
        args: Vec<String>,
    },
    /// Measure a GPU of this machine with the memory and the kernels of Sluice (starts sluice-gpu-bench).
    GpuBench {
        /// Passed on: `--device N`, `--only NAME[,NAME]`, `--list`, `--quick`, `--json FILE`, `--resume`, `--svg FOLDER`,
        /// `--profile FILE` (the machine, for `sluice-sim`).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
        args: Vec<String>,
    },
    /// Print a completion script.
    Completion {
        /// The shell.
        shell: CompletionShell,
    },
    /// Write man pages into a folder.
    #[command(hide = true)]
    Man {
        /// The folder; made if absent.
        folder: PathBuf,
    },
}

impl Command {
    /// Makes commands use the cluster by default, for the kubectl plugin.
    fn default_to_cluster(&mut self, cluster: bool) {
        match self {
            Command::Top(args) => args.cluster.cluster |= cluster,
            Command::Explain(args) => args.cluster.cluster |= cluster,
            Command::Plan(args) => args.cluster.cluster |= cluster,
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

/// Runs the command line of this process as the program `name`.
pub fn main(name: &'static str) -> ExitCode {
    let installed = rustls::crypto::ring::default_provider().install_default();
    assert!(installed.is_ok(), "no TLS provider is installed before main");
    let matches = Cli::command()
        .bin_name(name)
        .try_get_matches()
        .unwrap_or_else(|error| exit_with_usage_error(&with_file_tip(error)));
    let cli = Cli::from_arg_matches(&matches);
    let mut cli = cli.unwrap_or_else(|error| exit_with_usage_error(&error));
    cli.command.default_to_cluster(name == KUBECTL_PLUGIN);
    init_logging();
    match execute(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice: {error:#}");
            let misconfigured = error.chain().any(|cause| cause.is::<Misconfigured>());
            ExitCode::from(if misconfigured { EX_CONFIG } else { 1 })
        }
    }
}

/// Ends the process as clap does, with help or an error. An error on a terminal has lines that break between words;
/// clap breaks those of help alone.
fn exit_with_usage_error(error: &clap::Error) -> ! {
    match terminal::columns_of(&std::io::stderr()) {
        Some(columns) if error.use_stderr() => {
            let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let words = error.render();
            let text = if colour { words.ansi().to_string() } else { words.to_string() };
            // If the terminal is gone there is no reader, and the exit status reports the result.
            let _ = write!(std::io::stderr(), "{}", terminal::wrap(&text, columns));
            std::process::exit(error.exit_code())
        }
        _ => error.exit(),
    }
}

/// Adds a tip to write `-f FILE` if a file was given without the option.
fn with_file_tip(mut error: clap::Error) -> clap::Error {
    let of = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (given, usage) = (of(ContextKind::InvalidArg), of(ContextKind::Usage));
    let is_file = error.kind() == ErrorKind::UnknownArgument && !given.starts_with('-');
    if is_file && usage.contains("--file") {
        let tip = format!("use -f {given}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Logs warnings and errors, unless `RUST_LOG` sets another level.
fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into())
        .from_env_lossy();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // By default the logger panics on a line that cannot be written.
    lines.log_internal_errors(false).init();
}

fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => block_on(demo::run(args)),
        Command::Run(args) => block_on(run::run(args)),
        Command::Models(args) => models::run(&args),
        Command::Up(args) => block_on(up::run(args)),
        Command::Plan(args) => block_on(plan::run(args)),
        Command::Top(args) => block_on(top::run(args)),
        Command::Explain(args) => block_on(explain::run(args)),
        Command::Sleep(args) => block_on(sleep::sleep(args)),
        Command::Wake(target) => block_on(sleep::wake(target)),
        Command::Bench(args) => block_on(bench::run(args)),
        Command::GpuProbe { args } => exec_sibling("sluice-gpu-probe", "the GPU probe", &args),
        Command::GpuBench { args } => exec_sibling("sluice-gpu-bench", "the GPU benchmark", &args),
        Command::Completion { shell } => {
            let shell = match shell {
                CompletionShell::Bash => Shell::Bash,
                CompletionShell::Zsh => Shell::Zsh,
                CompletionShell::Fish => Shell::Fish,
            };
            // The script is buffered, because the generator panics on a failed write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
            print(String::from_utf8_lossy(&script).trim_end())
        }
        Command::Man { folder } => {
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            clap_mangen::generate_to(Cli::command(), &folder).with_context(|| folder.display().to_string())
        }
    }
}

/// One thread: a sidecar gets its parent-death signal when the *thread* that started it ends, so that thread must
/// run as long as the process.
fn block_on(future: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Replaces this process by another binary of the product. Returns only on failure.
fn exec_sibling(name: &str, what: &str, args: &[String]) -> anyhow::Result<()> {
    let program =
        sibling_binaries::find(name).with_context(|| format!("this installation does not include {what}"))?;
    let error = std::process::Command::new(&program).args(args).exec();
    Err(error).with_context(|| program.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}

//! Command line and logging of `sluice-sidecar`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::LazyLock;

use sluice_link::frame::LINK_VERSION;
use tracing_subscriber::EnvFilter;

use crate::download::{RetryArgs, SourceArgs};
use crate::inspect::InspectArgs;
use crate::logs::{LogFormat, line_prefix};

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT"));
    let wire = sluice_wire::state::VERSION;
    format!("{version} (commit {commit}, wire {wire}, link {LINK_VERSION})")
});

/// Serves one slot of a tenant: owns its device memory, schedules its requests and serves HTTP.
///
/// Exit status: 0 after a clean end, 78 when the configuration or the model folder is wrong (trying again will not
/// help), 1 otherwise.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "sluice-sidecar", version = VERSION.as_str(), subcommand_negates_reqs = true)]
pub struct Args {
    /// Configuration, a JSON file that `sluice up` and the operator write. Required unless --replay or a command is
    /// given.
    #[arg(long, value_name = "FILE", required_unless_present = "replay")]
    pub config: Option<PathBuf>,
    /// Replay a journal without a device and compare every digest, instead of serving.
    #[arg(long, value_name = "JOURNAL", conflicts_with = "config")]
    pub replay: Option<PathBuf>,
    /// Log format: `text` or `json`.
    #[arg(long, default_value = "text", env = "SLUICE_LOG_FORMAT", global = true)]
    pub log_format: LogFormat,
    /// Log filter, such as `info` or `sluice_agent=debug`.
    #[arg(long, default_value = "info", env = "SLUICE_LOG", global = true)]
    pub log: String,
    /// Text at the start of each log line, or in JSON its field `tenant`. `sluice up` sets the tenant's name.
    #[arg(long, value_name = "NAME", env = "SLUICE_LOG_NAME", global = true)]
    pub log_name: Option<String>,
    /// If the configuration cannot be used, write the reason only to `refusal.json` in the runtime folder. `sluice up`
    /// sets this option and prints the reason.
    #[arg(long, requires = "config")]
    pub refusal_in_file: bool,
    /// A task in place of serving.
    #[command(subcommand)]
    pub task: Option<Task>,
}

/// What a sidecar's program does instead of serving.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Task {
    /// Download a model, as a pod does before its sidecar starts.
    ///
    /// Files that are there already are used, parts of files too. Every file is checked by the length and the digest
    /// that its source states.
    Fetch {
        /// Report progress on standard output instead of in the log, one JSON object a line: `present_bytes`,
        /// `total_bytes`; and failed attempts: `problem`, `retry_in_ms`.
        #[arg(long, global = true)]
        progress: bool,
        /// Tries while the source cannot be reached.
        #[command(flatten)]
        retry: RetryArgs,
        /// Where it comes from.
        #[command(subcommand)]
        from: SourceArgs,
    },
    /// Print the sizes of a model, which the operator needs to place it, from its config.json and the headers of its
    /// weights.
    ///
    /// Standard output gets one line of JSON: the sizes, or the reason why there are none.
    Inspect(InspectArgs),
    /// Print the CUDA devices that this process sees, as `sluice up` does before it plans.
    ///
    /// Standard output gets one line of JSON: UUID, name and memory of each device, or the reason why there are none.
    Devices,
}

/// Starts logging to stderr. Stdout stays silent.
pub fn init_logging(args: &Args) {
    let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = line_prefix(args.log_format, args.log_name.as_deref());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || lines.clone());
    // A log reader that has exited must not end requests. By default, a line that cannot be written panics its thread.
    let builder = builder.log_internal_errors(false);
    match args.log_format {
        LogFormat::Text => builder.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn version_names_commit_and_interfaces() {
        let version = Args::command().render_version();
        assert!(version.starts_with("sluice-sidecar 0.1.0 (commit "), "{version}");
        assert!(version.ends_with(", wire 2, link 8)\n"), "{version}");
    }

    #[test]
    fn clap_definition_is_consistent() {
        Args::command().debug_assert();
    }
}

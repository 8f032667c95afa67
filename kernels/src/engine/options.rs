//! Command-line arguments of `sluice-engine`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Parser;
use sluice_link::frame::LINK_VERSION;

/// Version and commit of this build, sent to the sidecar in `Hello`.
pub(super) const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("SLUICE_COMMIT"), ")");

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT"));
    format!("{version} (commit {commit}, link {LINK_VERSION})")
});

/// Computes a model's steps for a sidecar that owns all memory.
///
/// Connects to the sidecar's socket (waiting while it is absent), maps the memory that it is handed and runs the steps
/// that it is given. A supervisor restarts the worker when it dies; SIGTERM takes effect once the sidecar has said
/// goodbye or is gone, so that open streams end in order. `SLUICE_LOG` sets what is logged (default: warn),
/// `SLUICE_LOG_NAME` what each line begins with.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice-engine", version = VERSION.as_str(), about, long_about)]
pub(super) struct Options {
    /// Socket of the sidecar
    #[arg(long, value_name = "PATH", env = "SLUICE_ENGINE_SOCKET")]
    pub(super) socket: PathBuf,

    /// Threads that compute. Default: the number that the sidecar sets, or one for each core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,

    /// Address at which the supervisor answers liveness probes. Default: none
    #[arg(long, value_name = "ADDRESS", env = "SLUICE_ENGINE_LIVE")]
    pub(super) live: Option<SocketAddr>,

    /// Run the worker in this process, without a supervisor that restarts it
    #[arg(long)]
    pub(super) no_supervisor: bool,

    /// Launch every step on a GPU kernel by kernel. Otherwise a decode step is one CUDA graph
    #[arg(long, env = "SLUICE_ENGINE_NO_GRAPHS", value_parser = clap::builder::FalseyValueParser::new())]
    pub(super) no_graphs: bool,

    /// Compute products in bf16 and f16 on a GPU by cuBLASLt, where it is installed. Otherwise kernels of Sluice compute
    /// them, and an answer does not depend on its batch
    #[arg(long, env = "SLUICE_ENGINE_CUBLASLT", value_parser = clap::builder::FalseyValueParser::new())]
    pub(super) cublaslt: bool,

    /// Worker of the supervisor with this process id
    #[arg(long, hide = true, value_name = "PID")]
    pub(super) worker: Option<i32>,

    /// The pod is ending: give up when no sidecar answers soon
    #[arg(long, hide = true)]
    pub(super) drain: bool,
}

/// The role of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Starts and restarts workers.
    Supervisor,
    /// Runs steps.
    Worker,
}

impl Options {
    pub(super) fn role(&self) -> Role {
        if self.no_supervisor || self.worker.is_some() { Role::Worker } else { Role::Supervisor }
    }
}

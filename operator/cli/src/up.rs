//! `sluice up`: runs the tenants of a YAML file as local processes, without a cluster.
//!
//! Each tenant is one sidecar process, which starts and supervises its engine. This process supervises the
//! sidecars: it restarts a sidecar that has exited, prints a line on stdout when a tenant serves, and removes all
//! files at its end.

mod config_error;
mod cuda_devices;
mod dashboard;
mod directive_pusher;
mod fleet;
mod gpu_ledger;
pub(crate) mod output;
pub(crate) mod plan;
mod process;
mod process_command;
pub(crate) mod ready;
mod shared_gpu;
mod signals;
mod support_check;

use std::io::IsTerminal;
use std::path::PathBuf;

use sluice_types::load::Loader;

use crate::admin::AdminClient;
use crate::manifests::{self, SourceObject};
use crate::{Misconfigured, sibling_binaries};
pub(crate) use config_error::{FieldLocator, unplaced_fields};
pub(crate) use dashboard::{DEFAULT_ADDRESS as DEFAULT_PAGE, DashboardServer};
pub(crate) use fleet::{Fleet, WAITING_FOR_STREAMS};
use output::eprint_note;
use plan::UpOptions;
use ready::ReadySink;
pub(crate) use signals::Signals;

/// Options of `sluice up`.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// YAML file with a GpuPool and its ModelTenants; may be given more than once.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Port of the first tenant's API; the next tenant takes the next one. 0 = free ports.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// Threads of each engine; 0 = all cores.
    #[arg(long, default_value_t = 0)]
    pub threads: u32,
    /// Runtime folder instead of the user's own.
    #[arg(long, env = "SLUICE_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Record each tenant's event queue in this folder, for `sluice-sidecar --replay`.
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// Serve a live page of all tenants, at this loopback address or port of 127.0.0.1. Without ADDRESS it is
    /// 127.0.0.1:8003, or a free port where that is taken; the line `page URL` on stdout says which.
    #[arg(
        long, value_name = "ADDRESS", num_args = 0..=1, value_parser = dashboard::parse_address,
        default_missing_value = "127.0.0.1:8003"
    )]
    pub page: Option<std::net::SocketAddr>,
    /// Experiments: a fixed layout of moving layers, ALPHA:BETA, instead of the controller's choice.
    #[arg(long, value_parser = plan::parse_force_remap, value_name = "ALPHA:BETA", hide_short_help = true)]
    pub force_remap: Option<(u16, u8)>,
    /// Experiments: overwrite every chunk with NaN when it changes its owner.
    #[arg(long, hide_short_help = true)]
    pub poison: bool,
}

/// Runs until it is stopped.
///
/// # Errors
/// A file cannot be read, an object is wrong or needs an unsupported feature, a sibling binary is missing, or a tenant
/// cannot be served.
pub async fn run(args: UpArgs) -> anyhow::Result<()> {
    let options = UpOptions {
        host: args.host,
        port: args.port,
        threads: args.threads,
        journal: args.journal.clone(),
        force_remap: args.force_remap,
        poison: args.poison,
        engine: sibling_binaries::find("sluice-engine")?,
    };
    let objects = load_objects(&args.files)?;
    // On a terminal, users do not read the log lines of every start.
    let quiet = std::io::stderr().is_terminal();
    let fleet =
        Fleet::claim(&objects, &options, args.runtime_dir.as_deref(), &ReadySink::Stdout, quiet).await?;
    if quiet {
        let titles: Vec<_> =
            fleet.configs().iter().map(|config| format!("{}/{}", config.namespace, config.name)).collect();
        eprint_note(format_args!("loading {}; Ctrl-C ends", titles.join(", ")));
    }
    let _page = match args.page {
        Some(address) => {
            Some(DashboardServer::start(address, &fleet.configs(), &AdminClient::new()?, "sluice up").await?)
        }
        None => None,
    };
    fleet.run(&mut Signals::new()?, WAITING_FOR_STREAMS, std::future::pending()).await
}

/// Loads the objects of all files, each with the base folder of its relative paths.
fn load_objects(paths: &[PathBuf]) -> Result<Vec<SourceObject>, Misconfigured> {
    let loaded = manifests::load_files(&Loader::new(), paths);
    let place = |located| SourceObject { folder: manifests::folder_of(paths, &located).to_owned(), located };
    let placed: Vec<_> = loaded.objects.into_iter().map(place).collect();
    if loaded.errors.is_empty() {
        return Ok(placed);
    }
    // Unsupported fields are reported in the same list.
    let errors = loaded.errors.into_iter().chain(plan::unsupported_fields(&placed).errors);
    Err(manifests::to_misconfigured(&errors.collect()))
}

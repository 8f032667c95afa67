//! `sluice top`: where the memory of running tenants is, and their figures.
//!
//! Sidecars of this machine are found in the runtime folder and asked over their admin ports; in a cluster the
//! operator's leader returns its last readings of them. The live screen shows what the page shows; `--once` prints
//! text ([`view`]).

mod live;
pub mod memory_map;
mod poll;
pub mod view;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::bail;
use sluice_page::rates::Rates;

use crate::admin::AdminClient;
use crate::cluster::{ClusterArgs, LeaderClient, OverviewScope};
use crate::runtime_dir::RuntimeDir;
use crate::{now_unix_ms, print};
pub use poll::SidecarPoll;
use poll::{PollSource, sidecar_polls};
use view::RenderContext;

/// Width of `--once`, columns: enough for every column of the table.
const ONCE_COLUMNS: usize = 110;

/// Options of `sluice top`.
#[derive(Clone, Debug, clap::Args)]
pub struct TopArgs {
    /// Print the state once as text and end. This is the default where standard output is not a terminal.
    #[arg(long)]
    pub once: bool,
    /// Print an array of states (`GET /v1/state`) and end, with --once or without. A sidecar that does not answer is
    /// reported on stderr and omitted, and the exit status is 1.
    #[arg(long)]
    pub json: bool,
    /// Runtime folder instead of the user's own.
    #[arg(long, env = "SLUICE_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Where the tenants are.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// In a cluster: of all namespaces.
    #[arg(long, short = 'A', help_heading = "Cluster")]
    pub all_namespaces: bool,
}

/// Shows the tenants, live or once.
///
/// # Errors
/// The runtime folder cannot be read, or the terminal cannot be used.
pub async fn run(args: TopArgs) -> anyhow::Result<()> {
    let source = match args.cluster.is_cluster() || args.all_namespaces {
        true => cluster_source(&args).await?,
        false => PollSource::Local(RuntimeDir::open(args.runtime_dir.as_deref())?, AdminClient::new()?),
    };
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match (args.json, args.once) {
        (true, _) => once_json(source).await,
        (false, false) if std::io::stdout().is_terminal() => live::run(source, colour).await,
        (false, _) => once_text(source).await,
    }
}

async fn cluster_source(args: &TopArgs) -> anyhow::Result<PollSource> {
    let cluster = args.cluster.connect().await?;
    let namespace = (!args.all_namespaces).then(|| cluster.namespace.clone());
    Ok(PollSource::Cluster(Box::new(LeaderClient::new(cluster)), OverviewScope { namespace, tenant: None }))
}

async fn once_json(mut source: PollSource) -> anyhow::Result<()> {
    let mut states = Vec::new();
    let mut silent = 0;
    for sighting in sidecar_polls(source.poll().await?, &mut Rates::default()) {
        match sighting.state {
            Ok(state) => states.push(state),
            Err(problem) => {
                silent += 1;
                eprintln!("sluice: {}: {problem}", sighting.title);
            }
        }
    }
    print(serde_json::to_string_pretty(&states)?)?;
    if silent > 0 {
        bail!("{silent} of {} sidecars did not answer", silent + states.len());
    }
    Ok(())
}

async fn once_text(mut source: PollSource) -> anyhow::Result<()> {
    let mut rates = Rates::default();
    let mut seen = sidecar_polls(source.poll().await?, &mut rates);
    if !source.is_cluster() {
        // A rate needs two readings, and those of a cluster are too far apart to wait for.
        tokio::time::sleep(source.refresh()).await;
        seen = sidecar_polls(source.poll().await?, &mut rates);
    }
    let view = RenderContext {
        polls: &seen,
        colour: false,
        now_unix_ms: now_unix_ms(),
        empty_text: source.empty_text(),
    };
    for line in view::text(&view, ONCE_COLUMNS) {
        // Text of other parties must not contain control sequences of the terminal. The live screen removes such
        // characters itself.
        print(line.to_string().replace(char::is_control, " ").trim_end())?;
    }
    Ok(())
}

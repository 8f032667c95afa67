//! `sluice up`: runs the tenants of a YAML file as local processes, without a cluster.
//!
//! Each tenant is one sidecar process, which starts and keeps its engine. This process keeps the sidecars: it restarts
//! what dies, says on stdout when a tenant serves, and leaves nothing behind when it ends.

mod blame;
mod built;
mod herald;
mod neighbourhood;
mod page;
mod place;
mod plan;
mod process;
mod shared;
pub(crate) mod speak;
mod weights;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::bail;
use sluice_types::load::{Loader, Object};
use sluice_wire::config::SidecarConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::runtime::{ClaimedFolder, RuntimeFolder};
use crate::{Misconfigured, files, siblings};
pub(crate) use blame::Blame;
use herald::{Announcer, Herald};
use page::Page;
use plan::Options;
use process::{Order, Tenant};
use shared::{Member, SharedGpu};
use speak::note;

/// Options of `sluice up`.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// YAML file with a GpuPool and its ModelTenants; may be given more than once.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Port of the first tenant's API; the next tenant takes the next one. 0 = free ports.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Address to listen at.
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
    /// Serve a live page of all tenants, at this loopback address or port of 127.0.0.1. Without ADDRESS it is 127.0.0.1:8003, or a free port
    /// where that is taken; the line `page URL` on stdout says which.
    #[arg(
        long, value_name = "ADDRESS", num_args = 0..=1, value_parser = page::parse_address,
        default_missing_value = "127.0.0.1:8003"
    )]
    pub page: Option<std::net::SocketAddr>,
    /// Experiments: a fixed layout of moving layers, ALPHA:BETA, instead of the controller's choice.
    #[arg(long, value_parser = plan::parse_forced, value_name = "ALPHA:BETA", hide_short_help = true)]
    pub force_remap: Option<(u16, u8)>,
    /// Experiments: overwrite every handed-over chunk with NaN.
    #[arg(long, hide_short_help = true)]
    pub poison: bool,
}

/// Runs until it is told to stop.
///
/// # Errors
/// A file that cannot be read, an object that is wrong or asks for what is not built, a sibling binary that is missing,
/// or a tenant that cannot be served.
pub async fn run(args: UpArgs) -> anyhow::Result<()> {
    let options = Options {
        host: args.host,
        port: args.port,
        threads: args.threads,
        journal: args.journal.clone(),
        force_remap: args.force_remap,
        poison: args.poison,
        engine: siblings::find("sluice-engine")?,
    };
    let sidecar = siblings::find("sluice-sidecar")?;
    let objects = read(&args.files)?;
    let runtime = RuntimeFolder::open(args.runtime_dir.as_deref())?;
    let mut plan = plan::plan(&objects, &options, &weigh).map_err(|all| files::refused(&all))?;
    plan.ineffective.iter().for_each(|field| note(format_args!("warning: {field}")));
    if plan.configs.is_empty() {
        return Err(nothing_to_run(&objects).into());
    }
    let mut shared = Shared::claim(&runtime, plan.shared, &mut plan.configs, &objects)?;
    let mut tenants = Vec::new();
    for (index, mut config) in plan.configs.into_iter().enumerate() {
        let folder = runtime.claim(&config.namespace, &config.name)?;
        config.runtime_dir = folder.path().to_owned();
        let blame = Blame::of(&objects, &config.namespace, &config.name);
        let announcer = shared.announcers.remove(&index);
        tenants.push(Tenant { sidecar: sidecar.clone(), config, folder, blame, announcer });
    }
    let configs: Vec<_> = tenants.iter().map(|tenant| &tenant.config).collect();
    let _page = match args.page {
        Some(address) => Some(Page::start(address, &configs, &Admin::new()?).await?),
        None => None,
    };
    supervise(tenants, shared.heralds).await
}

/// What is kept for the GPUs that have more than one tenant.
struct Shared {
    heralds: Vec<Herald>,
    /// By the place of the tenant's configuration.
    announcers: BTreeMap<usize, Announcer>,
    /// They go with this value, after all tenants have ended.
    _folders: Vec<ClaimedFolder>,
}

impl Shared {
    fn claim(
        runtime: &RuntimeFolder,
        gpus: Vec<SharedGpu>,
        configs: &mut [SidecarConfig],
        objects: &[plan::Placed],
    ) -> anyhow::Result<Self> {
        let mut shared = Shared { heralds: Vec::new(), announcers: BTreeMap::new(), _folders: Vec::new() };
        let (admin, epoch) = (Admin::new()?, herald::epoch());
        for gpu in gpus {
            shared._folders.push(neighbourhood::claim(runtime, &gpu, configs)?);
            let members: Vec<_> = gpu.members.iter().map(|member| member.config).collect();
            let blame = |member: &Member| Blame::of(objects, &gpu.namespace, &member.name);
            let blames = gpu.members.iter().map(blame).collect();
            let (herald, announcers) = Herald::new(gpu, blames, admin.clone(), epoch);
            shared.heralds.push(herald);
            shared.announcers.extend(members.into_iter().zip(announcers));
        }
        Ok(shared)
    }
}

/// Bytes of a tenant's weights.
fn weigh(config: &SidecarConfig) -> u64 {
    weights::bytes(&config.model_path, config.dtype.as_deref())
}

/// Objects of all files, each with the folder that its relative paths start from.
fn read(paths: &[PathBuf]) -> Result<Vec<plan::Placed>, Misconfigured> {
    let loaded = files::load(&Loader::new(), paths);
    let place = |located| plan::Placed { folder: files::folder_of(paths, &located).to_owned(), located };
    let placed: Vec<_> = loaded.objects.into_iter().map(place).collect();
    if loaded.errors.is_empty() {
        return Ok(placed);
    }
    // What is not built is told in the same list.
    let errors = loaded.errors.into_iter().chain(plan::findings(&placed).refused);
    Err(files::refused(&errors.collect()))
}

/// Files that hold no tenant, or only such as are not to run: to end with success would hide the mistake.
fn nothing_to_run(objects: &[plan::Placed]) -> Misconfigured {
    let tenants = objects.iter().filter(|placed| matches!(placed.located.object, Object::Tenant(_))).count();
    Misconfigured(match tenants {
        0 => "nothing to run: the files hold no ModelTenant".into(),
        1 => "nothing to run: the one ModelTenant is suspended or has no replicas".into(),
        n => format!("nothing to run: all {n} ModelTenants are suspended or have no replicas"),
    })
}

/// The signals that end this process.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal has gone; none when whoever started us had this ignored (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        // Asked before tokio takes the signal over.
        let hangup = if hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Signals { interrupt: signal(interrupt)?, terminate: signal(terminate)?, hangup })
    }

    /// Waits for one of them; says which.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "terminated",
            () = Self::hung_up(&mut self.hangup) => "hung up",
        }
    }

    async fn hung_up(hangup: &mut Option<Signal>) {
        match hangup {
            Some(hangup) => drop(hangup.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Whether SIGHUP, signal 1, is in the mask of ignored signals.
fn hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

type Ended = Result<anyhow::Result<()>, tokio::task::JoinError>;

/// Keeps every tenant until a signal comes or one of them cannot be served at all.
async fn supervise(tenants: Vec<Tenant>, heralds: Vec<Herald>) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let (order, orders) = tokio::sync::watch::channel(Order::Serve);
    // They end with this value, and fall silent as soon as the tenants are to drain.
    let mut telling = JoinSet::new();
    for herald in heralds {
        telling.spawn(herald.run(orders.clone()));
    }
    let mut running = JoinSet::new();
    for tenant in tenants {
        running.spawn(tenant.keep(orders.clone()));
    }
    let mut failure = None;
    tokio::select! {
        which = signals.next() => {
            note(format_args!("{which}; open streams may finish; a second signal ends at once"));
        }
        ended = running.join_next() => failure = ended,
        ended = fails(&mut telling) => failure = Some(ended),
    }
    // Everyone who is still there hears it; a closed channel would mean the same.
    let _ = order.send(Order::Drain);
    let drained = tokio::select! {
        rest = last_failure(&mut running) => { failure = failure.or(rest); true }
        which = signals.next() => {
            note(format_args!("{which}; open streams are cut"));
            false
        }
    };
    if !drained {
        // As above.
        let _ = order.send(Order::End);
        failure = failure.or(last_failure(&mut running).await);
    }
    match failure {
        None | Some(Ok(Ok(()))) if drained => Ok(()),
        None | Some(Ok(Ok(()))) => bail!("ended by a second signal, before open streams had finished"),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(panic)) => bail!("a tenant's supervisor failed: {panic}"),
    }
}

/// Waits until one of them does not end well.
async fn fails(telling: &mut JoinSet<anyhow::Result<()>>) -> Ended {
    while let Some(ended) = telling.join_next().await {
        if !matches!(ended, Ok(Ok(()))) {
            return ended;
        }
    }
    std::future::pending().await
}

/// Waits until every tenant has ended; the first that did not end well.
async fn last_failure(running: &mut JoinSet<anyhow::Result<()>>) -> Option<Ended> {
    let mut failure = None;
    while let Some(ended) = running.join_next().await {
        failure = failure.or(Some(ended).filter(|e| !matches!(e, Ok(Ok(())))));
    }
    failure
}

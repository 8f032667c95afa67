//! The tenants of a run: claimed, started, kept, and ended together.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;
use sluice_types::load::Object;
use sluice_wire::config::SidecarConfig;
use tokio::task::JoinSet;

use super::herald::{self, Announcer, Herald};
use super::plan::{self, Options, Placed};
use super::process::{Order, Tenant};
use super::ready::ReadySink;
use super::shared::{Member, SharedGpu};
use super::signals::Signals;
use super::speak::note;
use super::{Blame, neighbourhood, weights};
use crate::admin::Admin;
use crate::runtime::{ClaimedFolder, RuntimeFolder};
use crate::{Misconfigured, files, siblings};

/// Tenants whose folders are claimed and whose processes do not run yet.
pub struct Fleet {
    tenants: Vec<Tenant>,
    shared: Shared,
}

impl Fleet {
    /// Claims the folders of all tenants of `objects`. `quiet` is that of [`Tenant`].
    ///
    /// # Errors
    /// A sibling binary is missing, an object asks for what is not built, nothing is to run, or a tenant runs already.
    pub fn claim(
        objects: &[Placed],
        options: &Options,
        runtime_dir: Option<&Path>,
        ready_sink: &ReadySink,
        quiet: bool,
    ) -> anyhow::Result<Fleet> {
        let sidecar = siblings::find("sluice-sidecar")?;
        let runtime = RuntimeFolder::open(runtime_dir)?;
        let mut plan = plan::plan(objects, options, &weigh).map_err(|all| files::refused(&all))?;
        plan.ineffective.iter().for_each(|field| note(format_args!("warning: {field}")));
        if plan.configs.is_empty() {
            return Err(nothing_to_run(objects).into());
        }
        let mut shared = Shared::claim(&runtime, plan.shared, &mut plan.configs, objects)?;
        let mut tenants = Vec::new();
        for (index, mut config) in plan.configs.into_iter().enumerate() {
            let folder = runtime.claim(&config.namespace, &config.name)?;
            config.runtime_dir = folder.path().to_owned();
            let blame = Blame::of(objects, &config.namespace, &config.name);
            let announcer = shared.announcers.remove(&index);
            let (sidecar, ready_sink) = (sidecar.clone(), ready_sink.clone());
            tenants.push(Tenant { sidecar, config, folder, blame, announcer, ready_sink, quiet });
        }
        Ok(Fleet { tenants, shared })
    }

    /// Configurations of the tenants.
    pub fn configs(&self) -> Vec<&SidecarConfig> {
        self.tenants.iter().map(|tenant| &tenant.config).collect()
    }

    /// Runs until one of `signals` is received or `foreground` ends, then lets open streams finish.
    ///
    /// # Errors
    /// A tenant cannot be served at all, `foreground` failed, or a second signal cut open streams.
    pub async fn run(
        self,
        signals: &mut Signals,
        foreground: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let Fleet { tenants, mut shared } = self;
        let heralds = std::mem::take(&mut shared.heralds);
        supervise(tenants, heralds, signals, foreground).await
    }
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
        objects: &[Placed],
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

/// Files that hold no tenant, or only such as are not to run: to end with success would hide the mistake.
fn nothing_to_run(objects: &[Placed]) -> Misconfigured {
    let tenants = objects.iter().filter(|placed| matches!(placed.located.object, Object::Tenant(_))).count();
    Misconfigured(match tenants {
        0 => "nothing to run: the files hold no ModelTenant".into(),
        1 => "nothing to run: the one ModelTenant is suspended or has no replicas".into(),
        n => format!("nothing to run: all {n} ModelTenants are suspended or have no replicas"),
    })
}

type Ended = Result<anyhow::Result<()>, tokio::task::JoinError>;

/// Keeps every tenant until a signal is received, `foreground` ends, or one of them cannot be served at all.
async fn supervise(
    tenants: Vec<Tenant>,
    heralds: Vec<Herald>,
    signals: &mut Signals,
    foreground: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
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
        ended = foreground => failure = Some(Ok(ended)),
        ended = running.join_next() => failure = ended,
        ended = fails(&mut telling) => failure = Some(ended),
    }
    // From here on Ctrl-C ends the run, whatever it meant before.
    signals.restore_interrupt()?;
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

//! The tenants of a run: claims, starts, supervises and stops them together.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;
use sluice_types::load::ManifestObject;
use sluice_wire::config::SidecarConfig;
use sluice_wire::geometry::{GeometryError, GeometryErrorKind};
use tokio::task::JoinSet;

use super::cuda_devices::{self, CudaPools};
use super::directive_pusher::{self, DirectivePusher, RecordSender};
use super::output::eprint_note;
use super::plan::{self, UpOptions};
use super::process::TenantProcess;
use super::process_command::ProcessCommand;
use super::ready::ReadySink;
use super::shared_gpu::{GpuTenant, SharedGpu};
use super::signals::Signals;
use super::{FieldLocator, gpu_ledger};
use crate::admin::AdminClient;
use crate::manifests::{self, SourceObject};
use crate::plan::inputs::PlanInputs;
use crate::plan::sizes;
use crate::runtime_dir::{LockedDir, RuntimeDir};
use crate::{Misconfigured, sibling_binaries};

/// The note of a signal, where tenants give open streams time.
pub const WAITING_FOR_STREAMS: &str = "waiting until open streams end; a second signal ends them";

/// Tenants whose folders are claimed and whose processes are not started.
pub struct Fleet {
    tenants: Vec<TenantProcess>,
    shared: SharedGpus,
}

impl Fleet {
    /// Claims the folders of all tenants of `objects`. `quiet` limits their logs to warnings and errors.
    ///
    /// # Errors
    /// A sibling binary is missing, an object needs an unsupported feature, a tenant cannot be served or has no GPU,
    /// nothing is to run, or a tenant already runs.
    pub async fn claim(
        objects: &[SourceObject],
        options: &UpOptions,
        runtime_dir: Option<&Path>,
        ready_sink: &ReadySink,
        quiet: bool,
    ) -> anyhow::Result<Fleet> {
        let sidecar = sibling_binaries::find("sluice-sidecar")?;
        let runtime = RuntimeDir::open(runtime_dir)?;
        let mut inputs = plan::inputs(objects, options).map_err(|all| manifests::to_misconfigured(&all))?;
        let cuda = CudaPools::new(objects, &inputs);
        if !cuda.is_empty() {
            let assigned = cuda.assign(cuda_devices::find().await?);
            inputs.devices = assigned.map_err(|all| manifests::to_misconfigured(&all))?;
            cuda_devices::print(&inputs.devices);
        }
        sizes::read_sizes(&mut inputs, &[]).await;
        check_available(&inputs)?;
        let mut plan = plan::plan(objects, &inputs, options)?;
        plan.ineffective.iter().for_each(|field| eprint_note(format_args!("warning: {field}")));
        if plan.configs.is_empty() {
            return Err(no_tenants_error(objects).into());
        }
        let mut shared = SharedGpus::claim(&runtime, plan.shared, &mut plan.configs, objects)?;
        let mut tenants = Vec::new();
        for (index, mut config) in plan.configs.into_iter().enumerate() {
            let folder = runtime.claim(&config.namespace, &config.name)?;
            config.runtime_dir = folder.path().to_owned();
            let blame = FieldLocator::from_objects(objects, &config.namespace, &config.name);
            let announcer = shared.record_senders.remove(&index);
            let (sidecar, ready_sink) = (sidecar.clone(), ready_sink.clone());
            tenants.push(TenantProcess {
                sidecar,
                config,
                folder,
                locator: blame,
                record_sender: announcer,
                ready_sink,
                is_quiet: quiet,
            });
        }
        Ok(Fleet { tenants, shared })
    }

    /// Returns the configurations of the tenants.
    pub fn configs(&self) -> Vec<&SidecarConfig> {
        self.tenants.iter().map(|tenant| &tenant.config).collect()
    }

    /// Runs until one of `signals` is received or `foreground` ends, then lets open streams finish for as long as the
    /// tenants allow. `what_follows` is the note that a signal prints.
    ///
    /// # Errors
    /// A tenant cannot be served at all, `foreground` failed, or a second signal cut open streams.
    pub async fn run(
        self,
        signals: &mut Signals,
        what_follows: &str,
        foreground: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let Fleet { tenants, mut shared } = self;
        let directive_pushers = std::mem::take(&mut shared.pushers);
        supervise(tenants, directive_pushers, signals, what_follows, foreground).await
    }
}

/// Resources of the GPUs that have more than one tenant.
struct SharedGpus {
    pushers: Vec<DirectivePusher>,
    /// By the index of the tenant's configuration.
    record_senders: BTreeMap<usize, RecordSender>,
    /// Removed on drop, after all tenants have ended.
    _dirs: Vec<LockedDir>,
}

impl SharedGpus {
    fn claim(
        runtime: &RuntimeDir,
        gpus: Vec<SharedGpu>,
        configs: &mut [SidecarConfig],
        objects: &[SourceObject],
    ) -> anyhow::Result<Self> {
        let mut shared =
            SharedGpus { pushers: Vec::new(), record_senders: BTreeMap::new(), _dirs: Vec::new() };
        let (admin, epoch) = (AdminClient::new()?, directive_pusher::new_epoch());
        for gpu in gpus {
            shared._dirs.push(gpu_ledger::claim_gpu(runtime, &gpu, configs)?);
            let members: Vec<_> = gpu.gpu_tenants.iter().map(|member| member.config_index).collect();
            let blame =
                |member: &GpuTenant| FieldLocator::from_objects(objects, &gpu.namespace, &member.name);
            let blames = gpu.gpu_tenants.iter().map(blame).collect();
            let (pusher, announcers) = DirectivePusher::new(gpu, blames, admin.clone(), epoch);
            shared.pushers.push(pusher);
            shared.record_senders.extend(members.into_iter().zip(announcers));
        }
        Ok(shared)
    }
}

/// Checks that the models could be read just now. A model that is wrong is reported with its line by the plan.
fn check_available(inputs: &PlanInputs) -> anyhow::Result<()> {
    for ((namespace, name), said) in &inputs.inspections {
        if let Err(GeometryError { reason: GeometryErrorKind::Unavailable, message }) = said {
            bail!("{namespace}/{name}: {message}");
        }
    }
    Ok(())
}

/// Reports files without a tenant that is to run. To end with success would hide the mistake.
fn no_tenants_error(objects: &[SourceObject]) -> Misconfigured {
    let tenants =
        objects.iter().filter(|placed| matches!(placed.located.object, ManifestObject::Tenant(_))).count();
    Misconfigured(match tenants {
        0 => "nothing to run: the files hold no ModelTenant".into(),
        1 => "nothing to run: the one ModelTenant is suspended or has no replicas".into(),
        n => format!("nothing to run: all {n} ModelTenants are suspended or have no replicas"),
    })
}

type ExitResult = Result<anyhow::Result<()>, tokio::task::JoinError>;

/// Supervises every tenant until a signal is received, `foreground` ends, or one of them cannot be served at all.
async fn supervise(
    tenants: Vec<TenantProcess>,
    directive_pushers: Vec<DirectivePusher>,
    signals: &mut Signals,
    what_follows: &str,
    foreground: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let (order, orders) = tokio::sync::watch::channel(ProcessCommand::Serve);
    // The tasks end on drop, and stop sending as soon as the tenants are to drain.
    let mut pushers = JoinSet::new();
    for pusher in directive_pushers {
        pushers.spawn(pusher.run(orders.clone()));
    }
    let mut running = JoinSet::new();
    for tenant in tenants {
        running.spawn(tenant.supervise(orders.clone()));
    }
    let mut failure = None;
    tokio::select! {
        which = signals.next() => eprint_note(format_args!("{which}: {what_follows}")),
        ended = foreground => failure = Some(Ok(ended)),
        ended = running.join_next() => failure = ended,
        ended = wait_for_failure(&mut pushers) => failure = Some(ended),
    }
    // From here on Ctrl-C ends the run.
    signals.restore_interrupt()?;
    // Every running supervisor receives it; a closed channel would mean the same.
    let _ = order.send(ProcessCommand::Drain);
    let drained = tokio::select! {
        rest = last_failure(&mut running) => { failure = failure.or(rest); true }
        which = signals.next() => {
            eprint_note(format_args!("{which}: ending open streams"));
            false
        }
    };
    if !drained {
        // All remaining tenants receive it; a closed channel has the same effect.
        let _ = order.send(ProcessCommand::End);
        failure = failure.or(last_failure(&mut running).await);
    }
    match failure {
        None | Some(Ok(Ok(()))) if drained => Ok(()),
        None | Some(Ok(Ok(()))) => bail!("ended by a second signal, before open streams were complete"),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(panic)) => bail!("the supervisor of a tenant panicked: {panic}"),
    }
}

/// Waits until one of the tasks fails.
async fn wait_for_failure(pushers: &mut JoinSet<anyhow::Result<()>>) -> ExitResult {
    while let Some(ended) = pushers.join_next().await {
        if !matches!(ended, Ok(Ok(()))) {
            return ended;
        }
    }
    std::future::pending().await
}

/// Waits until every tenant has ended; returns the first failure.
async fn last_failure(running: &mut JoinSet<anyhow::Result<()>>) -> Option<ExitResult> {
    let mut failure = None;
    while let Some(ended) = running.join_next().await {
        failure = failure.or(Some(ended).filter(|e| !matches!(e, Ok(Ok(())))));
    }
    failure
}

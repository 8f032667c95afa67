//! Runs a sidecar: reads the configuration, listens, loads, serves and drains.

pub(crate) mod failure;
pub(crate) mod listeners;
pub(crate) mod runtime;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, anyhow};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sluice_link::server::Listener;
use sluice_scheduler::journal::Ending;
use sluice_wire::config::{EngineKind, SidecarConfig, SidecarRecord};
use sluice_wire::sidecar_hangs::SidecarHangs;
use tokio::sync::watch;

pub use self::failure::Failure;
use self::failure::{config_error, other_error};
use self::listeners::{Listeners, ServeContext, api_keys, model_names, stream_pacing};
use self::runtime::{runtime, wait_for_signal};
use crate::args::{Args, Task};
use crate::engine_loop::{InjectedFaults, LoadError, LoadedTenant, PeerContext, TenantLoader, load};
use crate::engine_process::SpawnedEngine;
use crate::gateway::limits::RequestLimiter;
use crate::gateway::scrape::MetricsScrape;
use crate::gateway::{ApiKeys, Gateway};
use crate::heartbeat::Heartbeat;
use crate::metrics::Metrics;
use crate::scheduler_handle::{MessageSender, SchedulerHandle, SchedulerMessage, Status};
use crate::{devices, download, inspect, open_files, proxied_engine};

/// Runs until a signal or a failure.
///
/// # Errors
/// The reason why the sidecar cannot run any more.
pub fn run(args: &Args) -> Result<(), Failure> {
    run_with(args, InjectedFaults::default())
}

/// Like [`run`], with injected faults for test programs.
///
/// # Errors
/// The reason why the sidecar cannot run any more.
pub fn run_with(args: &Args, faults: InjectedFaults) -> Result<(), Failure> {
    match &args.task {
        Some(Task::Fetch { progress, retry, from }) => return download::run(from, *progress, retry),
        Some(Task::Inspect(asked)) => return inspect::run(asked),
        Some(Task::Devices) => return devices::run(),
        None => {}
    }
    if let Some(journal) = &args.replay {
        return replay(journal).map_err(other_error);
    }
    let file = args.config.as_deref().ok_or_else(|| config_error(anyhow!("--config is required")))?;
    let config = read_config(file).map_err(config_error)?;
    disable_core_dumps(&config).map_err(other_error)?;
    open_files::raise_limit(&config);
    let folder = config.runtime_dir.clone();
    create_private_dir(&folder).map_err(other_error)?;
    run_configured(&folder, config, faults).map_err(|failure| {
        let left = failure.write_refusal(&folder);
        if left && args.refusal_in_file { Failure::Reported } else { failure }
    })
}

fn run_configured(folder: &Path, config: SidecarConfig, faults: InjectedFaults) -> Result<(), Failure> {
    let ended = match config.engine.kind {
        EngineKind::Native => run_native(folder, config, faults),
        EngineKind::Vllm => proxied_engine::run(config),
    };
    remove_runtime_files(folder);
    ended
}

fn run_native(folder: &Path, config: SidecarConfig, faults: InjectedFaults) -> Result<(), Failure> {
    let mut loaded = load(config).map_err(config_error)?;
    loaded.faults = faults;
    loaded.sidecar_hangs = sidecar_hangs(folder);
    let loaded = Arc::new(loaded);
    let socket = folder.join("engine.sock");
    let listener = Listener::bind(&socket).map_err(other_error)?;
    let engine = match &loaded.config.engine.spawn {
        Some(binary) => {
            let child = SpawnedEngine::start(binary, &socket);
            Some(child.with_context(|| binary.display().to_string()).map_err(config_error)?)
        }
        None => None,
    };
    let ending = engine.as_ref().map(SpawnedEngine::ending).unwrap_or_default();
    let ended = runtime()?.block_on(serve_native(&loaded, listener, ending));
    drop(engine);
    ended
}

/// Returns the earlier sidecars of this tenant that hung and were killed. `None` without a readable file.
fn sidecar_hangs(folder: &Path) -> Option<SidecarHangs> {
    SidecarHangs::read(folder).unwrap_or_else(|error| {
        let path = folder.join(SidecarHangs::FILE);
        tracing::warn!(%error, path = %path.display(), "could not read the count of sidecars that hung");
        None
    })
}

fn replay(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let replayed = sluice_scheduler::journal::replay(std::io::BufReader::new(file));
    let report = replayed.with_context(|| path.display().to_string())?;
    println!(
        "{}: replayed {} events, and every digest matches ({:016x}){}",
        path.display(),
        report.events,
        report.digest,
        describe_ending(report.ending)
    );
    Ok(())
}

fn describe_ending(ending: Ending) -> String {
    match ending {
        Ending::Whole => String::new(),
        Ending::NoDigest { line } => {
            format!("; the journal ends at line {line}: its event was replayed, but its digest is incomplete")
        }
        Ending::Cut { line } => {
            format!("; the journal ends at line {line}, which is incomplete and was not replayed")
        }
    }
}

fn read_config(path: &Path) -> anyhow::Result<SidecarConfig> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// Protects a process with keys. It shares a user, and in a pod the list of processes, with an engine that may run any
/// image. Without this, the engine could read its files and memory through `/proc`.
fn disable_core_dumps(config: &SidecarConfig) -> anyhow::Result<()> {
    if config.listen.admin_tls.is_none() && config.api_keys_file.is_none() {
        return Ok(());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("prctl(PR_SET_DUMPABLE)")
}

fn create_private_dir(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| folder.display().to_string())
}

fn remove_runtime_files(folder: &Path) {
    for name in [SidecarRecord::FILE, "token"] {
        // A file is absent if the start failed earlier.
        let _ = std::fs::remove_file(folder.join(name));
    }
}

async fn serve_native(
    loaded: &Arc<LoadedTenant>,
    listener: Listener,
    ending: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let config = &loaded.config;
    let listeners = Listeners::open(config).await?;
    let (inbox, messages) = MessageSender::new();
    let (status, watched) = watch::channel(Status::Loading);
    let service = SchedulerHandle::new(inbox.clone(), watched);
    let metrics =
        Arc::new(Metrics::new(&model_names(config)[0], &config.slo).with_directives(&listeners.directives));
    metrics.add_sidecar_hangs(loaded.sidecar_hangs.as_ref().map_or(0, |hangs| hangs.total));
    let (closed, heartbeat) = (Arc::new(AtomicBool::new(false)), Heartbeat::default());
    let peers = config.gpu_ledger.as_ref().map(|_| PeerContext {
        directives: listeners.directives.clone(),
        client: listeners.client(),
        runtime: tokio::runtime::Handle::current(),
        metrics: metrics.clone(),
    });
    let loading = TenantLoader {
        loaded: loaded.clone(),
        peers,
        directives: Some(listeners.directives.clone()),
        inbox: inbox.clone(),
        messages,
        status,
        metrics: metrics.clone(),
        listener,
        closed: closed.clone(),
        heartbeat: heartbeat.clone(),
    };
    let (engine_loop, failed) = spawn_engine_loop(loading).map_err(other_error)?;
    let keys = api_keys(config)?;
    let gateway = Arc::new(gateway(loaded, service.clone(), metrics.clone(), keys.clone())?);
    let (open, scrape) = (gateway.limiter.clone(), MetricsScrape::native(service, metrics));
    let behind = ServeContext { router: gateway.router(), scrape, open_requests: open, keys, heartbeat };
    let serving = listeners.serve(config, behind);
    let ended = tokio::select! {
        ended = wait_for_shutdown(failed) => ended,
        () = serving.wait_drained() => Ok(()),
    };
    let cut = || {
        closed.store(true, Ordering::Relaxed);
        ending.store(true, Ordering::Relaxed);
        // Every running request ends, and its client receives the reason.
        inbox.send(SchedulerMessage::Stop);
    };
    serving.drain(cut).await;
    let joined = tokio::task::spawn_blocking(move || engine_loop.join()).await;
    match (ended, joined) {
        (Ok(()), Ok(Err(_)) | Err(_)) => {
            Err(other_error(anyhow!("the scheduler's thread panicked; the panic message is above")))
        }
        (ended, _) => ended,
    }
}

type EngineLoopThread = std::thread::JoinHandle<()>;
type EngineLoopResult = tokio::sync::oneshot::Receiver<Result<(), Failure>>;

/// Loads and runs the engine loop on its own thread. The second value resolves when that thread ends by itself.
fn spawn_engine_loop(loading: TenantLoader) -> std::io::Result<(EngineLoopThread, EngineLoopResult)> {
    let (tell, failed) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("scheduler".into()).spawn(move || {
        let result = loading
            .finish()
            .map_err(load_failure)
            .and_then(|engine_loop| engine_loop.run().map_err(other_error));
        // After a requested shutdown, the receiver is dropped.
        let _ = tell.send(result);
    })?;
    Ok((thread, failed))
}

/// Converts a load error. Only errors that a restart cannot fix count as configuration errors.
fn load_failure(error: LoadError) -> Failure {
    match error {
        LoadError::Model(_) | LoadError::Config { .. } | LoadError::Unsatisfiable { .. } => {
            config_error(error)
        }
        error => other_error(error),
    }
}

/// Waits for a signal or for the end of the scheduler's thread.
async fn wait_for_shutdown(failed: EngineLoopResult) -> Result<(), Failure> {
    tokio::select! {
        signalled = wait_for_signal() => signalled,
        ended = failed => match ended {
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(())) | Err(_) => Err(other_error(anyhow!("the scheduler's thread ended"))),
        },
    }
}

fn gateway(
    loaded: &LoadedTenant,
    service: SchedulerHandle,
    metrics: Arc<Metrics>,
    api_keys: ApiKeys,
) -> Result<Gateway, Failure> {
    let config = &loaded.config;
    Ok(Gateway {
        text: loaded.text.clone(),
        service,
        served_names: model_names(config),
        vocab: loaded.spec.vocab,
        max_model_tokens: loaded.max_model_tokens,
        limits: config.limits.clone(),
        stream_pacing: stream_pacing(config)?,
        api_keys,
        limiter: RequestLimiter::new(config.limits.max_streams, metrics.clone()),
        metrics,
        started: Gateway::unix_seconds(),
        next_response: AtomicU64::new(RandomState::new().hash_one(std::process::id())),
    })
}

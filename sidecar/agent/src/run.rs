//! The life of a sidecar: read, listen, load, serve, drain.

mod failure;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use sluice_link::server::Listener;
use sluice_policy::deposit::Pacing;
use sluice_scheduler::journal::Ending;
use sluice_wire::config::{SidecarConfig, SidecarRecord};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub use self::failure::Failure;
use crate::admin::Admin;
use crate::admin::start::{Credentials, StartError};
use crate::args::{Args, Task};
use crate::engine_child::EngineChild;
use crate::gateway::Gateway;
use crate::gateway::open::OpenRequests;
use crate::gateway::serve::{LAST_WORD, Limits, finish, serve};
use crate::metrics::Metrics;
use crate::probes::{self, Hook};
use crate::room::{Among, InjectedFaults, LoadError, Loaded, Loading, load};
use crate::service::{Inbox, Message, Service, Status};
use crate::{admin, fetch, inspect};

fn config_error(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Config(error.into())
}

fn other(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Other(error.into())
}

/// Runs until told to stop.
///
/// # Errors
/// Why it could not go on.
pub fn run(args: &Args) -> Result<(), Failure> {
    run_with(args, InjectedFaults::default())
}

/// As [`run`], with faults: for programs of tests.
///
/// # Errors
/// Why it could not go on.
pub fn run_with(args: &Args, faults: InjectedFaults) -> Result<(), Failure> {
    match &args.task {
        Some(Task::Fetch { from }) => return fetch::run(from),
        Some(Task::Inspect(asked)) => return inspect::run(asked),
        None => {}
    }
    if let Some(journal) = &args.replay {
        return replay(journal).map_err(other);
    }
    let file = args.config.as_deref().ok_or_else(|| config_error(anyhow!("--config is required")))?;
    let config = read_config(file).map_err(config_error)?;
    let folder = config.runtime_dir.clone();
    make_folder(&folder).map_err(other)?;
    run_in(&folder, config, faults).inspect_err(|failure| failure.leave_word(&folder))
}

fn run_in(folder: &Path, config: SidecarConfig, faults: InjectedFaults) -> Result<(), Failure> {
    let mut loaded = load(config).map_err(config_error)?;
    loaded.faults = faults;
    let loaded = Arc::new(loaded);
    let socket = folder.join("engine.sock");
    let listener = Listener::bind(&socket).map_err(other)?;
    let engine = match &loaded.config.engine.spawn {
        Some(binary) => {
            let child = EngineChild::start(binary, &socket);
            Some(child.with_context(|| binary.display().to_string()).map_err(config_error)?)
        }
        None => None,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(other)?;
    let ending = engine.as_ref().map(EngineChild::ending).unwrap_or_default();
    let ended = runtime.block_on(live(&loaded, listener, ending));
    drop(engine);
    remove_own_files(folder);
    ended
}

fn replay(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let replayed = sluice_scheduler::journal::replay(std::io::BufReader::new(file));
    let report = replayed.with_context(|| path.display().to_string())?;
    println!(
        "{}: {} events replayed, every digest agrees ({:016x}){}",
        path.display(),
        report.events,
        report.digest,
        ending(report.ending)
    );
    Ok(())
}

fn ending(ending: Ending) -> String {
    match ending {
        Ending::Whole => String::new(),
        Ending::NoDigest { line } => {
            format!("; ends here: line {line}, whose event was replayed, has no whole digest")
        }
        Ending::Cut { line } => format!("; ends here: line {line} was cut and not replayed"),
    }
}

fn read_config(path: &Path) -> anyhow::Result<SidecarConfig> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| folder.display().to_string())
}

fn remove_own_files(folder: &Path) {
    for name in ["sidecar.json", "token"] {
        // Absent when the start did not come that far.
        let _ = std::fs::remove_file(folder.join(name));
    }
}

/// The sockets of one sidecar.
struct Sockets {
    serve: TcpListener,
    admin: TcpListener,
    probes: TcpListener,
}

impl Sockets {
    async fn bind(config: &SidecarConfig) -> Result<Self, Failure> {
        let bind = async |field, address: SocketAddr| {
            let bound = TcpListener::bind(address).await;
            bound.with_context(|| format!("cannot listen at {address}")).map_err(|e| Failure::Field(field, e))
        };
        let listen = &config.listen;
        Ok(Sockets {
            serve: bind("listen.serve", listen.serve).await?,
            admin: bind("listen.admin", listen.admin).await?,
            probes: bind("listen.probes", listen.probes).await?,
        })
    }

    /// Says where it listens: how others find this sidecar.
    fn record(&self, config: &SidecarConfig, token_file: &Path) -> anyhow::Result<()> {
        let record = SidecarRecord {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            pid: std::process::id(),
            serve: self.serve.local_addr()?,
            admin: self.admin.local_addr()?,
            probes: self.probes.local_addr()?,
            token_file: token_file.to_owned(),
            gpu: config.gpu.name.clone(),
        };
        let (path, part) =
            (config.runtime_dir.join("sidecar.json"), config.runtime_dir.join("sidecar.json.part"));
        std::fs::write(&part, serde_json::to_vec_pretty(&record)?)
            .with_context(|| part.display().to_string())?;
        std::fs::rename(&part, &path).with_context(|| path.display().to_string())
    }
}

async fn live(loaded: &Arc<Loaded>, listener: Listener, ending: Arc<AtomicBool>) -> Result<(), Failure> {
    let config = &loaded.config;
    let sockets = Sockets::bind(config).await?;
    let token_file = config.runtime_dir.join("token");
    let credentials = Credentials::of(config, &token_file).map_err(admin_failure)?;
    let directives = admin::start::directives(config);
    sockets.record(config, &token_file).map_err(other)?;
    let (inbox, messages) = Inbox::new();
    let (status, watched) = watch::channel(Status::Loading);
    let service = Service::new(inbox.clone(), watched);
    let metrics = Arc::new(Metrics::new(&model_names(config)[0], &config.slo));
    let closed = Arc::new(AtomicBool::new(false));
    let among = config.neighbourhood.as_ref().map(|_| Among {
        directives: directives.clone(),
        client: credentials.client(),
        runtime: tokio::runtime::Handle::current(),
        metrics: metrics.clone(),
    });
    let loading = Loading {
        loaded: loaded.clone(),
        among,
        inbox: inbox.clone(),
        messages,
        status,
        metrics: metrics.clone(),
        listener,
        closed: closed.clone(),
    };
    let (room, failed) = start_room(loading).map_err(other)?;
    let gateway = Arc::new(gateway(loaded, service.clone(), metrics.clone())?);
    let (stop, stopping) = watch::channel(false);
    let drain = Duration::from_secs(u64::from(config.drain_seconds));
    let limits = Limits { connections: config.limits.max_streams as usize + 1024, drain: drain + LAST_WORD };
    let small = Limits { connections: 64, drain: Duration::from_secs(1) };
    let admin = Admin::new(config, service.clone(), directives, &credentials);
    let admin = tokio::spawn(credentials.serve(sockets.admin, admin, small, stopping.clone()));
    let hook = config.listen.drain_hook.then(|| Hook::new(gateway.open.clone(), drain, Hook::SETTLE));
    let probes = probes::router(service, metrics, hook);
    let probes = tokio::spawn(serve(sockets.probes, probes, small, stopping.clone()));
    let serving = tokio::spawn(serve(sockets.serve, gateway.router(), limits, stopping));
    let ended = until_told(failed).await;
    tracing::info!("draining");
    // The receivers are tasks of this function; they are still there.
    let _ = stop.send(true);
    let cut = || {
        closed.store(true, Ordering::Relaxed);
        ending.store(true, Ordering::Relaxed);
        // Every request that still runs is told so, and its client by its answer.
        inbox.send(Message::Stop);
    };
    let _ = tokio::join!(finish(serving, drain, cut), admin, probes);
    let joined = tokio::task::spawn_blocking(move || room.join()).await;
    match (ended, joined) {
        (Ok(()), Ok(Err(_)) | Err(_)) => {
            Err(other(anyhow!("the scheduler's thread failed; its words are above")))
        }
        (ended, _) => ended,
    }
}

type RoomThread = std::thread::JoinHandle<()>;
type RoomEnd = tokio::sync::oneshot::Receiver<Result<(), Failure>>;

/// Loads and works on a thread of its own. The second value resolves when that thread ends by itself.
fn start_room(loading: Loading) -> std::io::Result<(RoomThread, RoomEnd)> {
    let (tell, failed) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("scheduler".into()).spawn(move || {
        let result = loading.finish().map_err(load_failure).and_then(|room| room.work().map_err(other));
        // Nobody listens any more when the end was asked for.
        let _ = tell.send(result);
    })?;
    Ok((thread, failed))
}

fn admin_failure(error: StartError) -> Failure {
    match error {
        StartError::Token { .. } => other(error),
        _ => config_error(error),
    }
}

/// Only what a restart cannot help counts as configuration.
fn load_failure(error: LoadError) -> Failure {
    match error {
        LoadError::Model(_) | LoadError::Config { .. } | LoadError::Refused { .. } => config_error(error),
        error => other(error),
    }
}

/// Waits for a signal, or for the scheduler's end.
async fn until_told(failed: RoomEnd) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(other)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(other)?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        ended = failed => match ended {
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(())) | Err(_) => Err(other(anyhow!("the scheduler's thread ended"))),
        },
    }
}

fn model_names(config: &SidecarConfig) -> Vec<String> {
    if config.served_names.is_empty() { vec![config.name.clone()] } else { config.served_names.clone() }
}

fn gateway(loaded: &Loaded, service: Service, metrics: Arc<Metrics>) -> Result<Gateway, Failure> {
    let config = &loaded.config;
    let interval_ns = u64::from(config.slo.tbt_milliseconds) * 1_000_000;
    let stream_pacing = match config.pacing.as_str() {
        "TokenDeposit" => Pacing::Paced { interval_ns },
        "Immediate" => Pacing::Immediate,
        other => {
            let problem = anyhow!("`{other}` is not built (TokenDeposit, Immediate)");
            return Err(Failure::Field("pacing", problem));
        }
    };
    Ok(Gateway {
        text: loaded.text.clone(),
        service,
        names: model_names(config),
        vocab: loaded.spec.vocab,
        max_model_tokens: loaded.max_model_tokens,
        limits: config.limits.clone(),
        stream_pacing,
        api_keys: read_keys(config).map_err(|error| Failure::Field("api_keys_file", error))?,
        open: OpenRequests::new(config.limits.max_streams, metrics.clone()),
        metrics,
        started: Gateway::unix_seconds(),
        answers: AtomicU64::new(1),
    })
}

fn read_keys(config: &SidecarConfig) -> anyhow::Result<Vec<String>> {
    let Some(path) = &config.api_keys_file else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let keys: Vec<_> = text.lines().map(str::trim).filter(|k| !k.is_empty() && !k.starts_with('#')).collect();
    anyhow::ensure!(!keys.is_empty(), "{}: holds no key", path.display());
    Ok(keys.into_iter().map(str::to_owned).collect())
}

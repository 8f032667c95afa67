//! Loads a tenant from its configuration: model, memory, link, limits.

pub(crate) mod error;
mod gpu;
mod join_ledger;
mod journal_file;
mod loaded_tenant;
pub(crate) mod policy_name;
mod sizes;
mod startup_inbox;
mod weights;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use sluice_link::control::ControlPage;
use sluice_link::error::LinkError;
use sluice_link::message::{Device, EngineSetup};
use sluice_link::model::ModelSpec;
use sluice_link::server::Listener;
use sluice_link::slab::{SlabLayout, slab_layout};
use sluice_link::tables::{TableShape, TableWriter};
use sluice_memory::{DeviceMemory, HostWeights, MemoryOptions, Quota, UnsharedQuota};
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::Nanos;
use sluice_policy::tunables::Tuned;
use sluice_scheduler::driver::Ports;
use sluice_scheduler::journal::Recorder;
use sluice_scheduler::{Driver, Scheduler};
use sluice_wire::config::SidecarConfig;
use sluice_wire::state::{State, Tenant};
use tokio::sync::watch;

pub use error::LoadError;
pub use loaded_tenant::{InjectedFaults, LoadedTenant};
pub use policy_name::parse_policy;
pub use sizes::{chunk_tokens, step_limits};

use error::config_error;
use gpu::Gpu;
use join_ledger::{JoinStatus, LedgerJoin};
use sizes::{engine_setup, geometry, host_weight_bytes, scheduler_config};
use startup_inbox::StartupInbox;
use weights::read_weights;

use super::EngineLoop;
use super::backend::{self, ControlPageGate, EngineCompute, EngineHandle};
use super::engine_acceptor::{EngineAcceptor, EngineLease, LEASE_TIMEOUT};
use super::engine_event::Attached;
use super::engine_watch::EngineWatch;
use super::idle_sleep::IdleSleep;
use super::max_map_count;
use super::peers::{self, PeerContext};
use super::placement_planner::PlannerThread;
use super::share_control::{ShareController, ShareGrant, ShareSource};
use super::state_recorder::StateRecorder;
use crate::clock::Clock;
use crate::directive::DirectiveStore;
use crate::heartbeat::Heartbeat;
use crate::metrics::Metrics;
use crate::model::config::read_spec;
use crate::model::text::Text;
use crate::open_files::{self, FileDemand};
use crate::peers::membership::LedgerMembership;
use crate::peers::quota::LedgerQuota;
use crate::scheduler_handle::{MessageSender, SchedulerMessage, Status};

/// Reads the model folder, but not the weights.
///
/// # Errors
/// The folder or the configuration is invalid.
pub fn load(config: SidecarConfig) -> Result<LoadedTenant, LoadError> {
    let tuned = parse_tunables(&config)?;
    let spec = read_spec(&config.model_path, config.dtype.as_deref())?;
    let text = Arc::new(Text::open(&config.model_path)?);
    text.check_ids(&config.model_path, spec.vocab)?;
    let max_model_tokens = config.max_model_len.unwrap_or(spec.max_positions);
    if max_model_tokens > spec.max_positions {
        let problem = format!("{max_model_tokens} exceeds the {} positions of the model", spec.max_positions);
        return Err(config_error("max_model_len", problem));
    }
    let (faults, sidecar_hangs) = (InjectedFaults::default(), None);
    let loaded = LoadedTenant { config, spec, text, max_model_tokens, tuned, faults, sidecar_hangs };
    check_host_memory(&loaded)?;
    check_kernel_limits(&loaded)?;
    Ok(loaded)
}

/// Checks what the kernel allows a chunk to be: a mapping on the host, an open file on a CUDA device.
fn check_kernel_limits(loaded: &LoadedTenant) -> Result<(), LoadError> {
    if loaded.config.gpu.cuda.is_some() {
        let demand = FileDemand::new(&loaded.config).with_chunks(sizes::capacity_chunks(&loaded.config));
        return demand
            .check(open_files::limit())
            .map_err(|error| config_error("gpu.chunk_bytes", format!("{error}, or use larger chunks")));
    }
    let demand = max_map_count::mapping_demand(&engine_setup(loaded, Device::Host));
    if let Some(warning) = max_map_count::check(demand, max_map_count::kernel_limit())? {
        tracing::warn!("{warning}");
    }
    Ok(())
}

fn parse_tunables(config: &SidecarConfig) -> Result<Tuned, LoadError> {
    let mut tuned = Tuned::default();
    let set = config.tunables.iter().try_for_each(|(name, value)| tuned.set(name, *value));
    set.map_err(|refused| config_error("tunables", refused.to_string()))?;
    Ok(tuned)
}

fn check_host_memory(loaded: &LoadedTenant) -> Result<(), LoadError> {
    let weights_bytes = host_weight_bytes(loaded, &slab_layout(&loaded.spec));
    let kv_bytes = loaded.config.memory.host_kv_bytes;
    let Some(given_bytes) = loaded.config.gpu.host_memory_bytes else { return Ok(()) };
    if weights_bytes > given_bytes {
        let problem =
            format!("the weights need {weights_bytes} bytes of host memory, but the limit is {given_bytes}");
        return Err(config_error("gpu.host_memory_bytes", problem));
    }
    if kv_bytes > given_bytes - weights_bytes {
        let problem = format!(
            "KV needs {kv_bytes} bytes of host memory and the weights need {weights_bytes}, but the limit \
             is {given_bytes}"
        );
        return Err(config_error("memory.host_kv_bytes", problem));
    }
    Ok(())
}

/// Inputs for the load of a tenant. [`TenantLoader::finish`] builds the engine loop from them.
pub struct TenantLoader {
    /// The tenant as read from its model folder.
    pub loaded: Arc<LoadedTenant>,
    /// Sender of messages to the engine loop.
    pub inbox: MessageSender,
    /// Receiver of those messages.
    pub messages: Receiver<SchedulerMessage>,
    /// Access to peers. `None` if the GPU is not shared.
    pub peers: Option<PeerContext>,
    /// Directives, which may change policy, cap, share and idle times. `None` if nothing may change.
    pub directives: Option<Arc<DirectiveStore>>,
    /// Receives the status.
    pub status: watch::Sender<Status>,
    /// Receives the metrics.
    pub metrics: Arc<Metrics>,
    /// Socket that engines connect to.
    pub listener: Listener,
    /// Set to stop accepting engines.
    pub closed: Arc<AtomicBool>,
    /// Shows that the engine loop's thread makes progress.
    pub heartbeat: Heartbeat,
}

impl TenantLoader {
    /// Loads the weights, waits for the first engine and for the floor, and builds the engine loop.
    ///
    /// # Errors
    /// The tenant cannot be served, or was stopped.
    pub fn finish(self) -> Result<EngineLoop, LoadError> {
        let loaded = self.loaded.clone();
        let (config, spec) = (&loaded.config, &loaded.spec);
        let mut rule = ShareSource::new(config, self.directives.as_deref())?;
        let layout = slab_layout(spec);
        let gpu = Gpu::open(config)?;
        let setup = engine_setup(&loaded, gpu.device());
        setup.check().map_err(LinkError::from)?;
        let (control, tables) = shared_pages(spec, &setup)?;
        let master = read_weights(&loaded, &layout, &gpu, &self.closed)?;
        let mut held_inbox = StartupInbox::new(self.messages, first_state(&loaded));
        let (source, startup_inbox, status) = (&mut rule, &mut held_inbox, JoinStatus::default());
        let mut entry = LedgerJoin { loaded: &loaded, source, startup_inbox, status };
        let place = entry.join()?;
        let options = host_options(&loaded, &layout, &setup, quota(place.as_ref()));
        let peer = EngineHandle::default();
        let (memory, pool) = create_memory(options, master, &gpu, (&control, &peer), self.inbox.clone())?;
        memory.set_faults(loaded.faults.memory.clone());
        let (listener, inbox, closed) = (self.listener, self.inbox, self.closed);
        let (page, lease, own_inbox) = (control.clone(), EngineLease::new(LEASE_TIMEOUT), inbox.clone());
        let (liveness, shared) = (peers::liveness_fd(place.as_ref())?, tables.clone());
        let acceptor =
            EngineAcceptor { listener, setup, pool, control, tables, liveness, inbox, closed, lease };
        spawn_acceptor(acceptor)?;
        let manager = entry.manager(&layout, place.as_ref())?;
        let (first, left) = held_inbox.into_handoff();
        let first = first.expect("a memory manager begins with an engine");
        let terms = peers::loan_terms(loaded.faults.loan);
        let core = Scheduler::new(
            peers::with_membership(scheduler_config(&loaded)?, place.as_ref(), &terms),
            manager,
        );
        let clock = Clock::start();
        let compute = EngineCompute::new(shared, peer);
        let journal = config.journal.as_deref().map(open_journal).transpose()?;
        let replies = place.as_ref().map(|place| Arc::new(place.pending_replies(config)));
        let membership_and_replies = place.as_ref().zip(replies.as_ref());
        let port = peers::peer_port(self.peers.as_ref(), membership_and_replies, (&own_inbox, clock), terms)?;
        let around = Ports { peers: port, planner: Box::new(start_planner(own_inbox)?) };
        let mut driver = Driver::start(around, Nanos(0), core, memory, compute, journal);
        let watch = watch_engine(page.clone(), config, &first);
        backend::on_attached(&mut driver, first);
        let recorder = attached_recorder(config);
        let share_control = ShareController::new(rule, share_grant(config, place.as_ref()));
        let mut engine_loop = EngineLoop {
            driver,
            inbox: left.messages,
            status: self.status,
            streams: Default::default(),
            metrics: self.metrics,
            recorder,
            clock,
            hold_limit: Duration::from_secs(u64::from(config.limits.hold_seconds)),
            engine_lost_at: None,
            engine_watch: watch,
            control_page: page,
            replies,
            share_control,
            membership: place,
            overtaken_slices: 0,
            idle_sleep: IdleSleep::new(config.hibernate_after_seconds, self.directives),
            heartbeat: self.heartbeat,
            sidecar_hangs: loaded.sidecar_hangs.clone(),
        };
        left.buffered.into_iter().for_each(|message| engine_loop.on_message(message));
        Ok(engine_loop)
    }
}

/// Creates the memory of the engine, and duplicates the descriptor of its pool if that is one file.
fn create_memory(
    options: MemoryOptions,
    master: HostWeights,
    gpu: &Gpu,
    (control, engine): (&Arc<ControlPage>, &EngineHandle),
    inbox: MessageSender,
) -> Result<(DeviceMemory, Option<OwnedFd>), LoadError> {
    let gate = Arc::new(ControlPageGate(control.clone()));
    let notify = Arc::new(move || inbox.send(SchedulerMessage::Wake));
    let (master, engine) = (Arc::new(master), Box::new(engine.clone()));
    let sizes = (options.geometry.chunk_bytes, options.geometry.capacity_chunks);
    let memory = match gpu.backing(sizes, control)? {
        None => DeviceMemory::new(options, master, gate, engine.clone(), notify)?,
        Some(backing) => {
            DeviceMemory::over(Box::new(backing), options, master, gate, engine.clone(), notify)?
        }
    };
    let pool = memory.pool_file().map(|file| file.try_clone_to_owned()).transpose();
    let pool = pool.map_err(|source| LoadError::Io { path: "the pool's memfd".into(), source })?;
    if pool.is_none() {
        engine.export_from(memory.pool().clone());
    }
    Ok((memory, pool))
}

/// Returns the record of a tenant whose first engine has attached.
fn attached_recorder(config: &SidecarConfig) -> StateRecorder {
    let mut recorder = StateRecorder::new(tenant(config), config.policy.clone());
    recorder.on_engine_attached(SystemTime::now());
    recorder
}

/// Watches the first engine for hangs.
fn watch_engine(page: Arc<ControlPage>, config: &SidecarConfig, first: &Attached) -> EngineWatch {
    let mut watch = EngineWatch::new(page, min_hang_timeout(config));
    watch.on_attached(first.process.clone(), first.supervisor.clone());
    watch
}

/// Creates the pages that the sidecar shares with its engine: the control page and the KV tables.
fn shared_pages(
    spec: &ModelSpec,
    setup: &EngineSetup,
) -> Result<(Arc<ControlPage>, Arc<Mutex<TableWriter>>), LoadError> {
    let control = ControlPage::create(spec.layers).map_err(LinkError::from)?;
    let tables = TableWriter::create(TableShape::of(setup)).map_err(LinkError::from)?;
    Ok((Arc::new(control), Arc::new(Mutex::new(tables))))
}

/// Returns the state of a tenant before its weights are loaded.
fn first_state(loaded: &LoadedTenant) -> State {
    State {
        tenant: tenant(&loaded.config),
        policy: loaded.config.policy.clone(),
        sidecar_hangs: loaded.sidecar_hangs.clone(),
        ..State::default()
    }
}

/// Returns the time without progress below which no engine counts as hung.
fn min_hang_timeout(config: &SidecarConfig) -> Duration {
    let set = config.engine.hang_timeout_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    set.unwrap_or(Duration::from_nanos(sluice_policy::hang::FLOOR_NS))
}

/// Starts the planner thread, which wakes the engine loop after each plan.
fn start_planner(inbox: MessageSender) -> Result<PlannerThread, LoadError> {
    // If the engine loop has ended, the wake-up is lost, which is harmless.
    let planner = PlannerThread::start(move || inbox.send(SchedulerMessage::Wake));
    planner.map_err(|source| LoadError::Io { path: "the planner's thread".into(), source })
}

fn host_options(
    loaded: &LoadedTenant,
    layout: &SlabLayout,
    setup: &EngineSetup,
    quota: Arc<dyn Quota>,
) -> MemoryOptions {
    MemoryOptions {
        // Memory never reads activation costs, and the engine has not reported them yet.
        geometry: geometry(loaded, layout, ActivationCost::default()),
        ranges: setup.range_sizes(),
        poison: loaded.config.debug.poison,
        copy_threads: 1,
        link_bytes_per_s: loaded.config.gpu.link_bytes_per_second,
        to_host_bytes_per_s: loaded.config.gpu.link_to_host_bytes_per_second,
        host_kv_bytes: loaded.config.memory.host_kv_bytes,
        quota,
    }
}

/// Returns the grant in the ledger, or of the whole GPU if it is not shared.
fn share_grant(config: &SidecarConfig, place: Option<&LedgerMembership>) -> ShareGrant {
    let participant = place.map(|place| place.ledger.clone());
    ShareGrant::new(participant, sizes::capacity_chunks(config), config.gpu.chunk_bytes)
}

/// Returns the counter of the tenant's bytes.
fn quota(place: Option<&LedgerMembership>) -> Arc<dyn Quota> {
    match place {
        Some(place) => Arc::new(LedgerQuota(place.ledger.clone())),
        None => Arc::new(UnsharedQuota),
    }
}

fn tenant(config: &SidecarConfig) -> Tenant {
    Tenant {
        namespace: config.namespace.clone(),
        name: config.name.clone(),
        model: config.served_names.first().unwrap_or(&config.name).clone(),
        gpu: config.gpu.name.clone(),
    }
}

fn open_journal(path: &Path) -> Result<Recorder, LoadError> {
    journal_file::open_recorder(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })
}

fn spawn_acceptor(door: EngineAcceptor) -> Result<(), LoadError> {
    let spawned = std::thread::Builder::new().name("engine-door".into()).spawn(move || door.run());
    spawned.map(drop).map_err(|source| LoadError::Io { path: "a thread".into(), source })
}

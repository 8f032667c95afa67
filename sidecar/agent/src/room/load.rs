//! From a configuration to a tenant that is ready to be scheduled: model, memory, link, limits.

mod recording;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use sluice_link::control::ControlPage;
use sluice_link::error::LinkError;
use sluice_link::message::{EngineSetup, Faults};
use sluice_link::model::ModelSpec;
use sluice_link::server::Listener;
use sluice_link::slab::{SlabLayout, slab_layout};
use sluice_link::tables::{TableShape, TableWriter};
use sluice_memory::neighbourhood::LedgerFaults;
use sluice_memory::{
    Alone, HostError, HostMemory, HostOptions, Master, MasterCopy, MasterError, Quota, RangeSizes, Slab,
};
use sluice_policy::brain::Brain;
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{LayerId, Nanos};
use sluice_policy::params::{ForcedRemap, Params, PolicyName};
use sluice_policy::refused::Refused;
use sluice_scheduler::journal::Recorder;
use sluice_scheduler::{Config, Core, Driver, Order};
use sluice_wire::config::SidecarConfig;
use sluice_wire::state::Tenant;
use tokio::sync::watch;

use super::Room;
use super::bed::Bed;
use super::body::{self, LinkCompute, PageGate, Peer};
use super::door::{Attached, Door, News, SEAT_PATIENCE, Seat};
use super::mappings;
use super::neighbours::{self, Among};
use super::state::Diary;
use crate::metrics::Metrics;
use crate::model::ModelError;
use crate::model::config::read_spec;
use crate::model::text::Text;
use crate::model::weights::Weights;
use crate::neighbours::place::{Place, PlaceError};
use crate::neighbours::quota::SeatQuota;
use crate::service::{Inbox, Message, Status};

/// Sequences whose decode step is always possible.
const SMALLEST_STEP: u32 = 16;

/// Why a tenant cannot be served. Trying again does not help.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model folder.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The configuration.
    #[error("{field}: {problem}")]
    Config {
        /// Field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The device is too small, or the layout impossible.
    #[error("{fields}: {0}", fields = fields(.0))]
    Refused(Refused),
    /// Host memory for the weights.
    #[error(transparent)]
    Master(#[from] MasterError),
    /// Memory that stands for the device's.
    #[error(transparent)]
    Memory(#[from] HostError),
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The GPU that it shares.
    #[error("the neighbourhood: {0}")]
    Place(#[from] PlaceError),
    /// A file.
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// Told to stop before the first engine came.
    #[error("stopped while loading")]
    Stopped,
}

/// The fields of the configuration to look at: the policy knows sizes and not where they come from.
const fn fields(refused: &Refused) -> &'static str {
    match refused {
        Refused::FloorExceedsCapacity { .. } => "gpu.memory_bytes, max_model_len",
        Refused::ContextDoesNotFit { .. } => {
            "memory.guaranteed_kv_bytes, memory.kv_limit_bytes, max_model_len"
        }
        Refused::BlockLargerThanChunk { .. } => "gpu.chunk_bytes",
        Refused::ZeroSize { .. } => "limits",
        Refused::BadForced { .. } => "debug.force_remap",
        Refused::BadCap { .. } => "memory.max_remapped_percent",
    }
}

impl LoadError {
    /// Fields of the configuration to look at, separated by commas, and what is wrong with them; `None` where the
    /// configuration is not the reason.
    pub fn about(&self) -> Option<(&'static str, String)> {
        match self {
            LoadError::Model(error) => Some(("model_path", error.to_string())),
            LoadError::Config { field, problem } => Some((field, problem.clone())),
            LoadError::Refused(refused) => Some((fields(refused), refused.to_string())),
            _ => None,
        }
    }
}

fn wrong(field: &'static str, problem: impl Into<String>) -> LoadError {
    LoadError::Config { field, problem: problem.into() }
}

/// Faults that tests inject to show that they would notice. A production sidecar has none: no configuration names them.
#[derive(Clone, Debug, Default)]
pub struct InjectedFaults {
    /// Of memory: copies, allocations.
    pub memory: sluice_memory::Faults,
    /// Of the ledger that it shares with its neighbours.
    pub ledger: LedgerFaults,
    /// Of the engine.
    pub engine: Faults,
    /// How long loans last unless they are renewed, where it is not the usual time.
    pub loan: Option<Duration>,
}

/// What is known once the model folder has been read, before any weight is loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: SidecarConfig,
    /// The model's shape.
    pub spec: ModelSpec,
    /// Text handling.
    pub text: Arc<Text>,
    /// Longest sequence, tokens.
    pub max_model_tokens: u32,
    /// None, unless a test says otherwise.
    pub faults: InjectedFaults,
}

/// Reads the model folder. Fast: no weights.
///
/// # Errors
/// What is wrong with the folder or the configuration.
pub fn load(config: SidecarConfig) -> Result<Loaded, LoadError> {
    let spec = read_spec(&config.model_path, config.dtype.as_deref())?;
    let text = Arc::new(Text::open(&config.model_path)?);
    text.check_ids(&config.model_path, spec.vocab)?;
    let max_model_tokens = config.max_model_len.unwrap_or(spec.max_positions);
    if max_model_tokens > spec.max_positions {
        let problem =
            format!("{max_model_tokens} is above the {} positions that the model has", spec.max_positions);
        return Err(wrong("max_model_len", problem));
    }
    let loaded = Loaded { config, spec, text, max_model_tokens, faults: InjectedFaults::default() };
    check_host_memory(&loaded)?;
    if let Some(warning) = mappings::check(mappings::need(&setup(&loaded)), mappings::limit())? {
        tracing::warn!("{warning}");
    }
    Ok(loaded)
}

fn check_host_memory(loaded: &Loaded) -> Result<(), LoadError> {
    let weights_bytes = master_bytes(loaded, &slab_layout(&loaded.spec));
    let kv_bytes = loaded.config.memory.host_kv_bytes;
    let Some(given_bytes) = loaded.config.gpu.host_memory_bytes else { return Ok(()) };
    if weights_bytes > given_bytes {
        let problem =
            format!("the weights take {weights_bytes} bytes of host memory, {given_bytes} are given");
        return Err(wrong("gpu.host_memory_bytes", problem));
    }
    if kv_bytes > given_bytes - weights_bytes {
        let problem = format!(
            "{kv_bytes} bytes for KV beside {weights_bytes} for the weights are more host memory than the {given_bytes} given"
        );
        return Err(wrong("memory.host_kv_bytes", problem));
    }
    Ok(())
}

/// Bytes of the master copy.
fn master_bytes(loaded: &Loaded, layout: &SlabLayout) -> u64 {
    layout.global.bytes + layout.layer.bytes * u64::from(loaded.spec.layers)
}

/// What the room's thread needs to come to life.
pub struct Loading {
    /// What was read.
    pub loaded: Arc<Loaded>,
    /// Messages.
    pub inbox: Inbox,
    /// Their reading end.
    pub messages: Receiver<Message>,
    /// The way to neighbours; `None` = the GPU is the tenant's own.
    pub among: Option<Among>,
    /// Where the status is shown.
    pub status: watch::Sender<Status>,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// Where engines connect.
    pub listener: Listener,
    /// Raised when no more engines are wanted.
    pub closed: Arc<AtomicBool>,
}

impl Loading {
    fn place(&self) -> Result<Option<Place>, LoadError> {
        let (config, faults) = (&self.loaded.config, &self.loaded.faults.ledger);
        let place = config.neighbourhood.as_ref();
        place.map(|place| Ok(Place::take(config, place, faults, &self.closed)?)).transpose()
    }

    /// Loads the weights, waits for the first engine, and opens the room.
    ///
    /// # Errors
    /// What makes it impossible to serve the tenant.
    pub fn finish(self) -> Result<Room, LoadError> {
        let loaded = self.loaded.clone();
        let (config, spec) = (&loaded.config, &loaded.spec);
        let (params, scheduling) = (params(&loaded)?, scheduler_config(&loaded)?);
        let layout = slab_layout(spec);
        let setup = setup(&loaded);
        setup.check().map_err(LinkError::from)?;
        let control = Arc::new(ControlPage::create(spec.layers).map_err(LinkError::from)?);
        let tables = TableWriter::create(TableShape::of(&setup)).map_err(LinkError::from)?;
        let tables = Arc::new(Mutex::new(tables));
        let master = read_weights(&loaded, &layout, &self.closed)?;
        let wake = self.inbox.clone();
        let place = self.place()?;
        let options = host_options(&loaded, &layout, &setup, quota(place.as_ref()));
        let (gate, notify) =
            (Arc::new(PageGate(control.clone())), Arc::new(move || wake.send(Message::Wake)));
        let peer = Peer::default();
        let memory = HostMemory::new(options, Arc::new(master), gate, Box::new(peer.clone()), notify)?;
        memory.set_faults(loaded.faults.memory.clone());
        let pool = memory.pool_fd().try_clone_to_owned();
        let pool = pool.map_err(|source| LoadError::Io { path: "the pool's memfd".into(), source })?;
        let (listener, inbox, closed) = (self.listener, self.inbox, self.closed);
        let tables_of_door = tables.clone();
        let seat = Seat::new(SEAT_PATIENCE);
        let life = neighbours::life(place.as_ref())?;
        let own_inbox = inbox.clone();
        let door = Door { listener, setup, pool, control, tables: tables_of_door, life, inbox, closed, seat };
        spawn_door(door)?;
        let mut early = Vec::new();
        let first = first_engine(&self.messages, &mut early)?;
        let brain = Brain::new(params, geometry(&loaded, &layout, first.hello.activation));
        // An engine that nobody needs is told, or whoever ends it would have to kill it.
        let brain = brain.inspect_err(|_| drop(first.sender.bye())).map_err(LoadError::Refused)?;
        if let Some(place) = &place {
            place.seat.declare_floor(u64::from(brain.floor_chunks()) * config.gpu.chunk_bytes);
        }
        let terms = neighbours::terms(loaded.faults.loan);
        let core = Core::new(neighbours::scheduling(scheduling, place.as_ref(), &terms), brain);
        let origin = Instant::now();
        let compute = LinkCompute::new(tables, peer);
        let journal = config.journal.as_deref().map(journal).transpose()?;
        let desk = place.as_ref().map(|place| Arc::new(place.desk(config)));
        let at_desk = place.as_ref().zip(desk.as_ref());
        let port = neighbours::port(self.among.as_ref(), at_desk, (&own_inbox, origin), terms)?;
        let mut driver = Driver::start_among(port, Nanos(0), core, memory, compute, journal);
        body::attach(&mut driver, first);
        let mut diary = Diary::new(tenant(config), config.policy.clone());
        diary.engine_attached(SystemTime::now());
        let mut room = Room {
            driver,
            inbox: self.messages,
            status: self.status,
            streams: Default::default(),
            metrics: self.metrics,
            diary,
            origin,
            hold: Duration::from_secs(u64::from(config.limits.hold_seconds)),
            engine_left: None,
            desk,
            place,
            bed: Bed::new(config.hibernate_after_seconds, self.among.as_ref().map(Among::directives)),
        };
        early.into_iter().for_each(|message| room.take(message));
        Ok(room)
    }
}

fn host_options(
    loaded: &Loaded,
    layout: &SlabLayout,
    setup: &EngineSetup,
    quota: Arc<dyn Quota>,
) -> HostOptions {
    HostOptions {
        // Memory never asks what activations cost; the engine has not said it yet.
        geometry: geometry(loaded, layout, ActivationCost::default()),
        ranges: ranges(setup),
        poison: loaded.config.debug.poison,
        copy_threads: 1,
        link_bytes_per_s: loaded.config.gpu.link_bytes_per_second,
        host_kv_bytes: loaded.config.memory.host_kv_bytes,
        quota,
    }
}

/// Who counts the tenant's bytes.
fn quota(place: Option<&Place>) -> Arc<dyn Quota> {
    match place {
        Some(place) => Arc::new(SeatQuota(place.seat.clone())),
        None => Arc::new(Alone),
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

fn journal(path: &Path) -> Result<Recorder, LoadError> {
    recording::recorder(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })
}

fn spawn_door(door: Door) -> Result<(), LoadError> {
    let spawned = std::thread::Builder::new().name("engine-door".into()).spawn(move || door.keep());
    spawned.map(drop).map_err(|source| LoadError::Io { path: "a thread".into(), source })
}

/// Waits for the first engine: only it can say what activations cost. Other messages are kept for later.
fn first_engine(messages: &Receiver<Message>, early: &mut Vec<Message>) -> Result<Attached, LoadError> {
    loop {
        match messages.recv() {
            Err(_) | Ok(Message::Stop) => return Err(LoadError::Stopped),
            Ok(Message::Engine(news)) => match *news {
                News::Attached(engine) => return Ok(engine),
                News::Lost(why) => tracing::warn!(why, "the first engine was lost before it was used"),
                News::Event(_) => {}
            },
            Ok(other) => early.push(other),
        }
    }
}

fn setup(loaded: &Loaded) -> EngineSetup {
    let (config, spec) = (&loaded.config, &loaded.spec);
    let capacity_chunks = capacity_chunks(config);
    EngineSetup {
        spec: spec.clone(),
        chunk_bytes: config.gpu.chunk_bytes,
        capacity_chunks,
        // Ranges are virtual: each is as long as the GPU, so that any share of it may stand behind any of them.
        kv_frames: capacity_chunks,
        activation_chunks: capacity_chunks,
        staging_chunks: 0,
        max_rows: config.limits.max_sequences,
        max_columns: Geometry::columns_for(loaded.max_model_tokens) + 1,
        max_history: loaded.max_model_tokens,
        chunk_tokens: config.limits.max_step_tokens.max(1),
        threads: u16::try_from(config.engine.threads).unwrap_or(u16::MAX),
        faults: loaded.faults.engine,
    }
}

fn ranges(setup: &EngineSetup) -> RangeSizes {
    RangeSizes {
        global_chunks: setup.global_chunks(),
        layer_chunks: vec![setup.layer_chunks(); usize::from(setup.spec.layers)],
        kv_frames: setup.kv_frames,
        activation_chunks: setup.activation_chunks,
        staging_chunks: setup.staging_chunks,
    }
}

fn capacity_chunks(config: &SidecarConfig) -> u32 {
    u32::try_from(config.gpu.memory_bytes / config.gpu.chunk_bytes.max(1)).unwrap_or(u32::MAX)
}

fn read_weights(loaded: &Loaded, layout: &SlabLayout, closed: &AtomicBool) -> Result<Master, LoadError> {
    let begun = Instant::now();
    let weights = Weights::open(&loaded.config.model_path)?;
    let slabs = vec![layout.layer.bytes; usize::from(loaded.spec.layers)];
    let total_bytes = master_bytes(loaded, layout);
    tracing::info!(model = %loaded.config.model_path.display(), total_bytes, "reading weights");
    let mut master = MasterCopy::new(layout.global.bytes, &slabs)?;
    weights.fill_global(&loaded.spec, layout, master.slab_mut(Slab::Global))?;
    each_layer(loaded.spec.layers, closed, |layer| {
        let slab = master.slab_mut(Slab::Layer(LayerId(layer)));
        Ok(weights.fill_layer(&loaded.spec, layout, layer, slab)?)
    })?;
    tracing::info!(seconds = begun.elapsed().as_secs_f64(), "weights are in host memory");
    Ok(master.freeze()?)
}

/// Reads layer after layer; a large model takes minutes, and whoever ends the tenant does not wait for the rest.
fn each_layer(
    layers: u16,
    closed: &AtomicBool,
    mut read: impl FnMut(u16) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    for layer in 0..layers {
        if closed.load(Ordering::Relaxed) {
            return Err(LoadError::Stopped);
        }
        read(layer)?;
        if (layer + 1).is_multiple_of(layers.div_ceil(4)) || layer + 1 == layers {
            tracing::info!("read {} of {layers} layers", layer + 1);
        }
    }
    Ok(())
}

fn geometry(loaded: &Loaded, layout: &SlabLayout, activation: ActivationCost) -> Geometry {
    let config = &loaded.config;
    Geometry {
        chunk_bytes: config.gpu.chunk_bytes,
        capacity_chunks: capacity_chunks(config),
        global_bytes: layout.global.bytes,
        slab_bytes: vec![layout.layer.bytes; usize::from(loaded.spec.layers)],
        block_bytes: loaded.spec.block_bytes(),
        activation,
        staging_chunks: 0,
    }
}

fn params(loaded: &Loaded) -> Result<Params, LoadError> {
    let config = &loaded.config;
    let limits = &config.limits;
    let sequences = limits.max_sequences.min(limits.max_step_tokens).max(1);
    let max_step = StepShape { tokens: limits.max_step_tokens, sequences, logit_rows: sequences };
    let least = SMALLEST_STEP.min(sequences);
    let debug = &config.debug;
    Ok(Params {
        policy: policy_of(&config.policy)?,
        share_chunks: share_chunks(config),
        remap_cap_permille: config.memory.max_remapped_percent.min(100) * 10,
        forced: debug.force_remap.map(|(alpha, beta)| ForcedRemap { alpha, beta }),
        max_model_tokens: loaded.max_model_tokens,
        guaranteed_kv_bytes: config.memory.guaranteed_kv_bytes.unwrap_or_else(|| one_sequence_bytes(loaded)),
        kv_limit_bytes: config.memory.kv_limit_bytes.unwrap_or(u64::MAX),
        host_kv_bytes: config.memory.host_kv_bytes,
        max_step,
        min_step: StepShape { tokens: least, sequences: least, logit_rows: least },
        prefix_caching: !debug.no_prefix_cache,
        link_bytes_per_second: config
            .gpu
            .link_bytes_per_second
            .unwrap_or(Params::default().link_bytes_per_second),
        ..Params::default()
    })
}

/// What the tenant may hold without asking a neighbour.
fn share_chunks(config: &SidecarConfig) -> u32 {
    let share = config.neighbourhood.as_ref().map(|place| place.share_bytes / config.gpu.chunk_bytes);
    share.map_or(u32::MAX, |chunks| u32::try_from(chunks).unwrap_or(u32::MAX))
}

/// The policy of that name.
///
/// # Errors
/// [`LoadError::Config`]: it is not built.
pub fn policy_of(name: &str) -> Result<PolicyName, LoadError> {
    match name {
        "Recompute" => Ok(PolicyName::Recompute),
        "Oneiros" => Ok(PolicyName::Oneiros),
        "Ellm" => Ok(PolicyName::Ellm),
        other => Err(wrong("policy", format!("`{other}` is not built (Recompute, Oneiros, Ellm)"))),
    }
}

/// KV of one sequence of the longest kind, in whole chunks.
fn one_sequence_bytes(loaded: &Loaded) -> u64 {
    let (block, chunk) = (loaded.spec.block_bytes(), loaded.config.gpu.chunk_bytes);
    let blocks = u64::from(Geometry::columns_for(loaded.max_model_tokens)) * u64::from(loaded.spec.layers);
    blocks.div_ceil((chunk / block).max(1)) * chunk
}

fn scheduler_config(loaded: &Loaded) -> Result<Config, LoadError> {
    let limits = &loaded.config.limits;
    let order = match loaded.config.order.as_str() {
        "FirstCome" => Order::FirstCome,
        "ShortestRemaining" => Order::ShortestRemaining,
        other => {
            return Err(wrong("order", format!("`{other}` is not built (FirstCome, ShortestRemaining)")));
        }
    };
    Ok(Config {
        max_model_tokens: loaded.max_model_tokens,
        max_step_tokens: limits.max_step_tokens,
        max_sequences: limits.max_sequences,
        max_queued: limits.max_queued_requests,
        order,
        ..Config::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_heard_before_the_next_layer_is_read() {
        let closed = AtomicBool::new(false);
        let mut read = Vec::new();
        let ended = each_layer(5, &closed, |layer| {
            read.push(layer);
            closed.store(layer == 1, Ordering::Relaxed);
            Ok(())
        });
        assert!(matches!(ended, Err(LoadError::Stopped)), "{ended:?}");
        assert_eq!(read, [0, 1]);
    }
}

//! The answer of `GET /v1/state`: everything a sidecar knows about its tenant at one moment.
//!
//! **Versions.** [`VERSION`] is a major. Within it fields are only added: a reader ignores unknown fields and uses
//! the default of missing ones. A removed field, a changed meaning, or a new value of an enumeration is a new
//! major, which an older reader refuses ([`State::from_json`]).
//!
//! Version 2 names the same things with the words of the glossary. Version 1 is still read: each renamed field has its old
//! name as an alias, because sidecars of one GPU are updated one after another.

mod figures;
mod gpu;
mod memory;
mod peers;

use serde::{Deserialize, Serialize};

pub use self::figures::{Figures, Percentiles, ReasonCount};
pub use self::gpu::{GpuState, TenantReport};
pub use self::memory::{KvState, MemoryState, Move, OwnerBytes};
pub use self::peers::{Activity, Direction, GrantState, SharingState, Skip, Takeover, TimeSliceState};
use crate::message::{self, ReadError};
pub use crate::sidecar_hangs::SidecarHangs;

/// Major of the message.
pub const VERSION: u32 = 2;

/// Most entries in [`State::moves`].
pub const MAX_MOVES: usize = 64;

/// How long conditions, `explain`, `top` and the page report a hang after it, milliseconds.
pub const HANG_REPORTED_MS: u64 = 600_000;

/// The state of one tenant slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Major of this message, [`VERSION`].
    pub version: u32,
    /// When this was taken, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// Identity of the tenant.
    pub tenant: Tenant,
    /// What it is doing.
    pub phase: Phase,
    /// Since when, milliseconds since the Unix epoch.
    pub phase_since_unix_ms: u64,
    /// `POST /sleep` put it to sleep: a request does not wake it.
    pub sleep_ordered: bool,
    /// Since when no request is waiting or running, milliseconds since the Unix epoch; `None` while one is.
    pub idle_since_unix_ms: Option<u64>,
    /// Named policy, as in `GpuPool.spec.policy`.
    pub policy: String,
    /// Which layers share slots.
    pub remap: RemapState,
    /// Where each layer is, front first.
    pub layers: Vec<Residency>,
    /// Device memory by owner.
    pub memory: MemoryState,
    /// The KV cache.
    pub kv: KvState,
    /// Requests.
    pub queue: Queue,
    /// Streams to clients.
    pub streams: Streams,
    /// Measurements since the start.
    pub figures: Figures,
    /// Objectives and how they are met.
    pub slo: SloState,
    /// The engine process.
    pub engine: EngineState,
    /// Sidecars of this tenant that hung and were killed; `None` = there were none.
    pub sidecar_hangs: Option<SidecarHangs>,
    /// The last memory events, oldest first; at most [`MAX_MOVES`].
    pub moves: Vec<Move>,
    /// Its memory and time slices among its peers; `None` = alone on its GPU, or an old writer without peers.
    #[serde(alias = "neighbourhood")]
    pub peers: Option<SharingState>,
    /// Its last use: peers select victims by this.
    pub activity: Activity,
}

impl Default for State {
    fn default() -> Self {
        State {
            version: VERSION,
            at_unix_ms: 0,
            tenant: Tenant::default(),
            phase: Phase::default(),
            phase_since_unix_ms: 0,
            sleep_ordered: false,
            idle_since_unix_ms: None,
            policy: String::new(),
            remap: RemapState::default(),
            layers: Vec::new(),
            memory: MemoryState::default(),
            kv: KvState::default(),
            queue: Queue::default(),
            streams: Streams::default(),
            figures: Figures::default(),
            slo: SloState::default(),
            engine: EngineState::default(),
            sidecar_hangs: None,
            moves: Vec::new(),
            peers: None,
            activity: Activity::default(),
        }
    }
}

impl State {
    /// Reads a message. The version is looked at first, so that a newer message is refused for being newer.
    ///
    /// # Errors
    /// No JSON, a field of another type, a newer major.
    pub fn from_json(text: &[u8]) -> Result<State, ReadError> {
        message::read(text, VERSION)
    }
}

/// Identity of a state's tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tenant {
    /// Namespace of the `ModelTenant`.
    pub namespace: String,
    /// Name of the `ModelTenant`.
    pub name: String,
    /// Name under which clients ask for the model.
    pub model: String,
    /// Name of the GPU in its pool.
    pub gpu: String,
}

/// What a tenant is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Weights are on their way, or the first engine is.
    #[default]
    Loading,
    /// Has requests, or has not been idle long enough; [`State::idle_since_unix_ms`] distinguishes these.
    Active,
    /// Has had no request for the idle time of its directive.
    Idle,
    /// Holds no chunk; KV of held requests and the prefix cache lie in host memory, requests are held.
    Hibernated,
    /// Was hibernated; memory and layers come back.
    Waking,
    /// The engine died; requests are held until its successor has attached.
    EngineLost,
    /// Ends its open streams and takes no new request.
    Draining,
    /// Cannot serve; the reason is [`EngineState::failure`].
    Failed,
}

/// Which layers share slots (Oneiros 5.4).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemapState {
    /// Layers whose memory was given away.
    pub alpha: u16,
    /// Slots that the moving layers share, 1 or 2; 0 while none moves.
    pub beta: u8,
    /// The moving layers, alpha + beta of them, ascending.
    pub moving_layers: Vec<u16>,
    /// Most layers that remapping may give away at one time; the policy's own figure.
    pub cap_layers: u16,
}

/// Where a layer's weights are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Residency {
    /// Not on the GPU yet.
    #[default]
    Loading,
    /// In chunks of its own.
    Resident,
    /// Shares a slot; streams in for each step.
    Moving {
        /// The slot.
        slot: u8,
    },
}

/// Requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Accepted, not admitted yet.
    pub waiting: u32,
    /// In the running batch.
    pub running: u32,
    /// Preempted, to be recomputed; part of `waiting`.
    pub preempted: u32,
}

/// Streams to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Streams {
    /// Open streams.
    pub open: u32,
    /// Tokens generated and not yet delivered, over all streams.
    pub deposit_tokens: u64,
}

/// A later token is in time within its objective and this many percent more: a paced stream is never written before its
/// interval has passed, so exactly the interval is the earliest, not the latest.
pub const TBT_TOLERANCE_PERCENT: u32 = 10;

/// Objectives of delivered tokens and how they are met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SloState {
    /// Objective for the time to the first token, ns.
    pub ttft_target_ns: u64,
    /// Objective for the time between tokens, ns.
    pub tbt_target_ns: u64,
    /// Length of the window, seconds.
    pub window_seconds: u32,
    /// Share of tokens in the window that may be late, permille.
    pub allowed_miss_permille: u32,
    /// Share of first tokens in the window that were in time, permille; `None` = there was none. Tokens that are
    /// overdue now count as missed.
    pub ttft_attained_permille: Option<u32>,
    /// Share of later tokens in the window that were in time, permille; `None` = there was none. Tokens that are
    /// overdue now count as missed.
    pub tbt_attained_permille: Option<u32>,
    /// Answers whose first token is overdue now.
    pub ttft_overdue: u32,
    /// Answers whose next token is overdue now.
    pub tbt_overdue: u32,
    /// First tokens in the window.
    pub ttft_window: TokenCounts,
    /// Later tokens in the window.
    pub tbt_window: TokenCounts,
}

impl SloState {
    /// The longest time between tokens that is in time, ns.
    pub fn tbt_limit_ns(&self) -> u64 {
        let tolerance_ns = self.tbt_target_ns / 100 * u64::from(TBT_TOLERANCE_PERCENT);
        self.tbt_target_ns.saturating_add(tolerance_ns)
    }
}

/// The tokens that a share in time is over, and of the missed ones, why they were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenCounts {
    /// Tokens that were written, are overdue now, or never came although they were due; 0 = none, or a writer from
    /// before there were these counts.
    pub tokens: u64,
    /// Of these, tokens that never came: the client left after the objective had passed, or the server failed the
    /// answer. They are missed, and no percentile has a time of them.
    pub given_up: u64,
    /// Of these, missed ones that were awaited while the tenant slept by order ([`State::sleep_ordered`]). A token
    /// may
    /// be one of `given_up` as well.
    pub asleep: u64,
}

/// The engine process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineState {
    /// Process id in the sidecar's pid namespace; `None` = none attached.
    pub pid: Option<u32>,
    /// Engines that were lost since the sidecar started.
    pub restarts: u64,
    /// Attempt of the link: raised with every engine, so that an old one's messages are known.
    pub attempt: u64,
    /// When the engine attached, milliseconds since the Unix epoch; `None` = none attached.
    pub up_since_unix_ms: Option<u64>,
    /// When the last one was lost, milliseconds since the Unix epoch; `None` = none was since the sidecar started.
    pub lost_unix_ms: Option<u64>,
    /// Why the tenant cannot serve, while it cannot.
    pub failure: Option<String>,
    /// What the engine is doing; `None` = it has nothing to do.
    pub work: Option<EngineWork>,
    /// Engines that the sidecar ended since its start because they exceeded a deadline.
    pub hangs: u64,
    /// The last of them; `None` = none since the sidecar started.
    pub last_hang: Option<EngineHang>,
}

/// What an engine was ordered to do and has not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineWork {
    /// `step`, `remapping` or `attach`.
    pub during: String,
    /// Time without progress, milliseconds. Time in which the node itself was slow does not count.
    pub waited_ms: u64,
    /// The deadline, milliseconds without progress: after it the engine is killed.
    pub limit_ms: u64,
}

/// An engine that exceeded its deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineHang {
    /// When the sidecar found it, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// What the engine was ordered to do: `step`, `first step`, `remapping` or `attach`.
    pub during: String,
    /// Time without progress, milliseconds. Time in which the node itself was slow does not count.
    pub waited_ms: u64,
    /// The deadline, milliseconds without progress.
    pub limit_ms: u64,
    /// The process still runs: SIGKILL could not be sent, or has not ended it yet.
    pub alive: bool,
}

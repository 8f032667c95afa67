//! Messages to and from the worker of an engine that schedules by itself: the process that runs the model over the
//! sidecar's chunks. It also receives [`Message::Chunks`](super::Message::Chunks), `Release` and `Remap`, and replies
//! `Applied` or `Refused`.

use serde::{Deserialize, Serialize};
use sluice_policy::ids::{ActionId, KvChunkId, LayerId};
use sluice_ports::memory::RangeSizes;

use super::ids;
use super::kv_layout::{KvExtents, KvLayout};
use super::setup::{Device, SetupError, check_chunk_bytes, check_reserved, within};
use crate::frame::MessageKind;

/// Most layers of a model.
pub const MAX_LAYERS: usize = 4096;
/// Most bytes of a name or version.
pub const MAX_NAME_BYTES: usize = 256;

/// Identity of a worker. Carries a pidfd of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerHello {
    /// Version of the adapter, for logs.
    pub build: String,
    /// Name and version of the engine, such as `vllm 0.32.0`.
    pub engine: String,
    /// Process id, for logs; an exit is confirmed by pidfd only.
    pub pid: u32,
    /// Rank of this worker.
    pub rank: u32,
    /// Workers of the engine.
    pub ranks: u32,
}

impl WorkerHello {
    /// Refuses names that are too long.
    pub fn check(&self) -> Result<(), SetupError> {
        check_name("build", &self.build)?;
        check_name("engine", &self.engine)
    }
}

/// The memory that a worker may reserve addresses for. Carries as descriptors, in this order: the pool
/// ([`Device::Host`] only), the control page, the lifetime lock and a pidfd of the sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// The device that computes.
    pub device: Device,
    /// Bytes of a chunk, as in [`EngineSetup::chunk_bytes`](super::EngineSetup::chunk_bytes).
    pub chunk_bytes: u64,
    /// Chunks in the pool.
    pub capacity_chunks: u32,
    /// Chunks of the range of each decoder layer's parameters.
    pub layer_chunks: Vec<u32>,
    /// Chunks of the KV range.
    pub kv_chunks: u32,
}

impl WorkerSetup {
    /// Refuses sizes that overflow or reserve without bound. Both ends call it.
    pub fn check(&self) -> Result<(), SetupError> {
        check_chunk_bytes(self.chunk_bytes)?;
        let layers = self.layer_chunks.len();
        within("layer_chunks", layers as u64, (1..=MAX_LAYERS).contains(&layers), "1..=4096 layers")?;
        let chunks = self.layer_chunks.iter().chain([&self.capacity_chunks, &self.kv_chunks]);
        let chunks: u128 = chunks.map(|count| u128::from(*count)).sum();
        check_reserved(chunks * u128::from(self.chunk_bytes))
    }

    /// Returns the number of layers.
    pub fn layers(&self) -> u16 {
        u16::try_from(self.layer_chunks.len()).expect("a setup that was checked has at most 4096 layers")
    }

    /// Returns the size of each range.
    pub fn range_sizes(&self) -> RangeSizes {
        RangeSizes {
            global_chunks: 0,
            layer_chunks: self.layer_chunks.clone(),
            kv_chunks: self.kv_chunks,
            activation_chunks: 0,
            staging_chunks: 0,
        }
    }
}

/// The parameters of all decoder layers lie in their ranges and are final.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loaded {
    /// Bytes used from the front of each layer's range.
    pub layer_bytes: Vec<u64>,
}

/// The layers that may move. From pass `first_pass` on the worker waits before it reads one of them for the pass's lease
/// ([`Lease`](crate::control::Lease)) and for the generation that it names, and publishes that generation as `done` after
/// the last read. It waits for no other layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moving {
    /// Identifies the reply.
    #[serde(with = "ids::action")]
    pub id: ActionId,
    /// The layers; empty if none moves.
    #[serde(with = "ids::layers")]
    pub layers: Vec<LayerId>,
    /// The first pass that waits.
    pub first_pass: u64,
}

/// Fill chunks of the KV range with zeros: a chunk that was another tenant's may hold NaN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zero {
    /// Identifies the reply.
    #[serde(with = "ids::action")]
    pub id: ActionId,
    /// Positions in the KV range.
    #[serde(with = "ids::kv_chunks")]
    pub positions: Vec<KvChunkId>,
    /// Whether the command continues in the next message. The worker fills nothing before it has all of it.
    pub more: bool,
}

/// A message of the worker's link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerMessage {
    /// Worker: the first message.
    Hello(WorkerHello),
    /// Sidecar: the reply to `Hello`.
    Setup(WorkerSetup),
    /// Sidecar: fill chunks with zeros; the reply is `Applied`.
    Zero(Zero),
    /// Worker: the parameters are final.
    Loaded(Loaded),
    /// Sidecar: the reply to `Loaded`. It has its master copy in host memory.
    Captured,
    /// Worker: where its KV blocks lie.
    KvLayout(KvLayout),
    /// Sidecar: the reply to `KvLayout`.
    KvAccepted(KvExtents),
    /// Sidecar: these layers move from now on; the reply is `Applied`. No pass runs.
    Moving(Moving),
}

impl WorkerMessage {
    /// Returns the message's kind.
    pub fn kind(&self) -> MessageKind {
        match self {
            WorkerMessage::Hello(_) => MessageKind::WorkerHello,
            WorkerMessage::Setup(_) => MessageKind::WorkerSetup,
            WorkerMessage::Zero(_) => MessageKind::Zero,
            WorkerMessage::Loaded(_) => MessageKind::Loaded,
            WorkerMessage::Captured => MessageKind::Captured,
            WorkerMessage::KvLayout(_) => MessageKind::KvLayout,
            WorkerMessage::KvAccepted(_) => MessageKind::KvAccepted,
            WorkerMessage::Moving(_) => MessageKind::Moving,
        }
    }

    /// Returns the number of file descriptors that the message carries.
    pub fn descriptors(&self) -> usize {
        match self {
            WorkerMessage::Hello(_) => 1,
            WorkerMessage::Setup(setup) if setup.device == Device::Host => 4,
            WorkerMessage::Setup(_) => 3,
            _ => 0,
        }
    }

    /// Refuses sizes above their limits. Both ends call it.
    pub fn check(&self) -> Result<(), SetupError> {
        match self {
            WorkerMessage::Hello(hello) => hello.check(),
            WorkerMessage::Setup(setup) => setup.check(),
            WorkerMessage::Loaded(loaded) => check_layers("layer_bytes", loaded.layer_bytes.len()),
            WorkerMessage::Moving(moving) => check_layers("layers", moving.layers.len()),
            WorkerMessage::Zero(_)
            | WorkerMessage::Captured
            | WorkerMessage::KvLayout(_)
            | WorkerMessage::KvAccepted(_) => Ok(()),
        }
    }
}

fn check_layers(field: &'static str, layers: usize) -> Result<(), SetupError> {
    within(field, layers as u64, layers <= MAX_LAYERS, "at most 4096 layers")
}

/// Refuses a name that is too long.
pub(super) fn check_name(field: &'static str, name: &str) -> Result<(), SetupError> {
    within(field, name.len() as u64, name.len() <= MAX_NAME_BYTES, "at most 256 bytes")
}

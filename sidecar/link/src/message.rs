//! The messages of the link, in types of the policy and the ports, and their wire form.

mod ids;
mod kv_layout;
mod scheduler;
mod setup;
mod setup_refused;
mod wire;
mod worker;

use sluice_policy::action::MapOp;
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{ActionId, ChunkId, Generation, LayerId, RowId, StepId};
use sluice_ports::compute::{SampleRequest, StepDone};

use crate::frame::MessageKind;

pub use kv_layout::{KvExtents, KvLayout, KvLayoutError};
pub use scheduler::{
    Demand, Held, MAX_BLOCKED, MAX_EXTENTS, Resume, Retired, SchedulerHello, SchedulerMessage, SchedulerSetup,
};
pub use setup::{Device, EngineSetup, Faults, SetupError};
pub use setup_refused::{MAX_MESSAGE_BYTES, RefusalReason, SetupRefused};
pub use worker::{Loaded, MAX_LAYERS, MAX_NAME_BYTES, Moving, WorkerHello, WorkerMessage, WorkerSetup, Zero};

/// Most chunks of one [`Message::Chunks`]; Linux passes at most 253 descriptors in one packet.
pub const CHUNKS_PER_MESSAGE: usize = 64;

/// Identity of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version and commit of the build, for logs.
    pub build: String,
    /// Process id, for logs; an exit is confirmed by pidfd only.
    pub pid: u32,
    /// [`crate::slab::reference_digest`]: the ends refuse each other if their slab layouts differ.
    pub layout_digest: u64,
}

/// The engine has reserved its ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Digest of the model's slab layout as the engine computes it.
    pub slab_digest: u64,
    /// Activation bytes by step shape.
    pub activation: ActivationCost,
}

/// One sequence of a step. Its tokens are in the token history, at positions `start..start + count`.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceOrder {
    /// Row of block table and token history.
    pub row: RowId,
    /// Position of the first token. The step writes no KV before it.
    pub start: u32,
    /// Tokens fed, at least 1.
    pub count: u32,
    /// `Some` when the next token is sampled after the last one.
    pub sample: Option<SampleRequest>,
}

/// A step as the engine receives it: `ports::Step` without tokens and updates, which travel in shared memory.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOrder {
    /// Step id.
    pub id: StepId,
    /// Incremented at every replay.
    pub attempt: u32,
    /// Epoch of the time slice.
    pub epoch: u64,
    /// Half of the shared tables that holds this step's state: 0 or 1.
    pub parity: u8,
    /// Sequences.
    pub sequences: Vec<SequenceOrder>,
    /// Generation that each moving layer must have before it is read.
    pub generations: Vec<(LayerId, Generation)>,
    /// Generation that the KV of each partly offloaded layer must have before it is read.
    pub kv_generations: Vec<(LayerId, Generation)>,
    /// Bytes of the activation range that have memory.
    pub activation_limit_bytes: u64,
}

/// A message of the link.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Engine: the first message.
    Hello(Hello),
    /// Sidecar: the reply to `Hello`. Carries as descriptors, in this order: the pool ([`Device::Host`] only), the
    /// control page, the tables, the lifetime lock and a pidfd of the sidecar.
    Model(Box<EngineSetup>),
    /// Engine: the reply to `Model`. Carries a pidfd of itself and one of its supervisor (of itself again without one).
    Ready(Ready),
    /// Sidecar: chunks of a GPU that the engine imports, each with its descriptor, in this order. They precede the first
    /// `Remap` that maps them. The engine holds an import until `Release`, so a chunk is exported once per engine.
    Chunks {
        /// The chunks, at most [`CHUNKS_PER_MESSAGE`].
        chunks: Vec<ChunkId>,
    },
    /// Sidecar: release the imports of these chunks, which are not mapped. Their memory is free only then.
    Release {
        /// Identifies the reply.
        id: ActionId,
        /// The chunks.
        chunks: Vec<ChunkId>,
        /// Whether the command continues in the next message.
        more: bool,
    },
    /// Sidecar: make these changes in order. The engine is between steps.
    Remap {
        /// Identifies the reply.
        id: ActionId,
        /// Changes.
        ops: Vec<MapOp>,
        /// Whether the command continues in the next message. The engine changes nothing before it has all of it.
        more: bool,
    },
    /// Engine: all changes of a `Remap` or `Release` are made.
    Applied {
        /// The command.
        id: ActionId,
    },
    /// Engine: the `Remap` or `Release` contradicts the engine's mappings; nothing changed.
    Refused {
        /// The command.
        id: ActionId,
        /// The reason.
        message: String,
    },
    /// Sidecar: run a step.
    Step(StepOrder),
    /// Engine: a step has finished.
    Done(StepDone),
    /// Engine: the step cannot run. It wrote nothing, or KV at its own positions if a slot or a KV buffer was
    /// overwritten while it ran.
    StepRefused {
        /// The step.
        id: StepId,
        /// Its attempt.
        attempt: u32,
        /// The reason.
        message: String,
    },
    /// Engine: the step stopped before its end, because another time slice than the step's is in force on the GPU. It
    /// sampled no token; it wrote KV at its own positions at most.
    StaleEpoch {
        /// The step.
        id: StepId,
        /// Its attempt.
        attempt: u32,
    },
    /// Either end: the link ends.
    Bye,
    /// A message of the worker of an engine that schedules by itself.
    Worker(WorkerMessage),
    /// A message of the scheduler of such an engine.
    Scheduler(SchedulerMessage),
    /// Sidecar: a worker or scheduler is refused.
    SetupRefused(SetupRefused),
}

impl Message {
    /// Returns the message's kind.
    pub fn kind(&self) -> MessageKind {
        match self {
            Message::Hello(_) => MessageKind::Hello,
            Message::Model(_) => MessageKind::Model,
            Message::Ready(_) => MessageKind::Ready,
            Message::Chunks { .. } => MessageKind::Chunks,
            Message::Release { .. } => MessageKind::Release,
            Message::Remap { .. } => MessageKind::Remap,
            Message::Applied { .. } => MessageKind::Applied,
            Message::Refused { .. } => MessageKind::Refused,
            Message::Step(_) => MessageKind::Step,
            Message::Done(_) => MessageKind::Done,
            Message::StepRefused { .. } => MessageKind::StepRefused,
            Message::StaleEpoch { .. } => MessageKind::StaleEpoch,
            Message::Bye => MessageKind::Bye,
            Message::Worker(message) => message.kind(),
            Message::Scheduler(message) => message.kind(),
            Message::SetupRefused(_) => MessageKind::SetupRefused,
        }
    }

    /// Returns the number of file descriptors that the message carries.
    pub fn descriptors(&self) -> usize {
        match self {
            Message::Model(setup) if setup.device == Device::Host => 5,
            Message::Model(_) => 4,
            Message::Ready(_) => 2,
            Message::Chunks { chunks } => chunks.len(),
            Message::Worker(message) => message.descriptors(),
            Message::Scheduler(message) => message.descriptors(),
            _ => 0,
        }
    }
}

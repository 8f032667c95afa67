//! Messages: what the two ends say to each other, in the shared vocabulary, and their wire form.

mod setup;
mod wire;

use sluice_policy::action::Reback;
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{ActionId, Generation, LayerId, RowId, StepId};
use sluice_ports::compute::{SampleRequest, StepDone};

use crate::frame::{MessageKind, ProtocolError};

pub use setup::{EngineSetup, Faults, SetupError};

/// The engine introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version and commit of the build, for people.
    pub build: String,
    /// Process id, for people; death is known by pidfd only.
    pub pid: u32,
    /// [`crate::slab::reference_digest`]: two builds that would lay out slabs differently refuse each other.
    pub layout_digest: u64,
}

/// The engine has reserved its ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Digest of the model's slab layout as this engine computes it.
    pub slab_digest: u64,
    /// Activation bytes by step shape.
    pub activation: ActivationCost,
}

/// One sequence of a step. Its tokens stand in the token history, at positions `start..start + count`.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceOrder {
    /// Row of block table and token history.
    pub row: RowId,
    /// Position of the first token; KV is written only from here on.
    pub start: u32,
    /// Tokens fed, at least 1.
    pub count: u32,
    /// `Some` when the next token is sampled after the last one.
    pub sample: Option<SampleRequest>,
}

/// A step as the engine receives it: `ports::Step` without tokens and updates, which travel in shared memory.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOrder {
    /// Which.
    pub id: StepId,
    /// Raised at every replay.
    pub attempt: u32,
    /// Epoch of the turn.
    pub epoch: u64,
    /// Half of the shared tables that holds this step's state: 0 or 1.
    pub parity: u8,
    /// Sequences.
    pub sequences: Vec<SequenceOrder>,
    /// Generation that each moving layer must show before it is read.
    pub generations: Vec<(LayerId, Generation)>,
    /// Generation that the KV of each layer which is partly away must show before it is read.
    pub kv_generations: Vec<(LayerId, Generation)>,
    /// Bytes of the activation range that are backed.
    pub activation_limit_bytes: u64,
}

/// Everything that is ever said on the link.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Engine, first.
    Hello(Hello),
    /// Sidecar, in answer; carries the pool, the control page, the tables, the common life and a pidfd of the sidecar as
    /// descriptors, in this order.
    Model(Box<EngineSetup>),
    /// Engine, in answer; carries a pidfd of itself and one of its supervisor, or of itself again where it has none.
    Ready(Ready),
    /// Sidecar: carry out these changes in order. The engine is between steps.
    Reback {
        /// Names the answer.
        id: ActionId,
        /// Changes.
        ops: Vec<Reback>,
        /// The order goes on in the next message. The engine changes nothing before it has all of it.
        more: bool,
    },
    /// Engine: all changes are made.
    Applied {
        /// Of this order.
        id: ActionId,
    },
    /// Engine: the order contradicts its table; nothing was changed.
    Refused {
        /// Of this order.
        id: ActionId,
        /// Why.
        message: String,
    },
    /// Sidecar: run a step.
    Step(StepOrder),
    /// Engine: a step has finished.
    Done(StepDone),
    /// Engine: the step cannot run. Nothing was written but, when a slot or a buffer of KV was overwritten under it, KV at
    /// the step's own positions.
    StepRefused {
        /// Which.
        id: StepId,
        /// Of this attempt.
        attempt: u32,
        /// Why.
        message: String,
    },
    /// Engine: the step was left unfinished, since another turn than the step's is in force on the GPU. No token was sampled;
    /// KV is written at the step's own positions at most.
    TurnPassed {
        /// Which.
        id: StepId,
        /// Of this attempt.
        attempt: u32,
    },
    /// Either end: no more.
    Bye,
}

impl Message {
    /// The kind of this message.
    pub fn kind(&self) -> MessageKind {
        match self {
            Message::Hello(_) => MessageKind::Hello,
            Message::Model(_) => MessageKind::Model,
            Message::Ready(_) => MessageKind::Ready,
            Message::Reback { .. } => MessageKind::Reback,
            Message::Applied { .. } => MessageKind::Applied,
            Message::Refused { .. } => MessageKind::Refused,
            Message::Step(_) => MessageKind::Step,
            Message::Done(_) => MessageKind::Done,
            Message::StepRefused { .. } => MessageKind::StepRefused,
            Message::TurnPassed { .. } => MessageKind::TurnPassed,
            Message::Bye => MessageKind::Bye,
        }
    }

    /// File descriptors that travel with it.
    pub fn descriptors(kind: MessageKind) -> usize {
        match kind {
            MessageKind::Model => 5,
            MessageKind::Ready => 2,
            _ => 0,
        }
    }

    /// The payload's bytes.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Reads a payload of `kind`. Refuses what does not decode, what follows the end, and values out of range.
    pub fn decode(kind: MessageKind, payload: &[u8]) -> Result<Message, ProtocolError> {
        wire::decode(kind, payload)
    }
}

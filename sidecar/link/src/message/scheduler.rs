//! Messages to and from the scheduler of an engine that schedules by itself. The sidecar gives it KV by extents (see
//! [`KvExtents`](super::KvExtents)), holds it while memory changes, and takes extents back.
//!
//! Extent 0 holds the engine's null block. It never leaves, so no message names it as idle, retired or withdrawn.

use serde::{Deserialize, Serialize};
use sluice_policy::ids::ActionId;

use super::ids;
use super::setup::{SetupError, within};
use super::worker::check_name;
use crate::frame::MessageKind;

/// Most extents of an engine: lists of all of them fit one message.
pub const MAX_EXTENTS: usize = 1 << 20;
/// Most requests that one `Demand` names.
pub const MAX_BLOCKED: usize = 1024;

/// Identity of a scheduler. Carries a pidfd of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerHello {
    /// Version of the adapter, for logs.
    pub build: String,
    /// Name and version of the engine, such as `vllm 0.32.0`.
    pub engine: String,
    /// Process id, for logs; an exit is confirmed by pidfd only.
    pub pid: u32,
    /// Blocks for which the engine has addresses.
    pub blocks: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Most tokens of one request.
    pub max_model_len: u32,
}

/// The extents that have memory. Carries as descriptors, in this order: a pidfd of the sidecar and the lifetime lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerSetup {
    /// Blocks of an extent.
    pub extent_blocks: u32,
    /// Extents of the engine.
    pub extents: u32,
    /// The extents that have memory, extent 0 among them.
    pub granted: Vec<u32>,
}

/// The scheduler runs no step, and none is in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The `Hold`.
    #[serde(with = "ids::action")]
    pub id: ActionId,
    /// Granted extents of which no block is referenced, the longest unused first.
    pub idle: Vec<u32>,
    /// Blocks that requests lack for their next tokens.
    pub wanted_blocks: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Requests that run.
    pub running: u32,
}

/// The extents that a scheduler has given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retired {
    /// The `Retire`.
    #[serde(with = "ids::action")]
    pub id: ActionId,
    /// The extents, at most as many as were asked for.
    pub extents: Vec<u32>,
    /// Requests that were preempted for them.
    pub preempted: u32,
}

/// Steps may run again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Identifies the command in logs; there is no reply.
    #[serde(with = "ids::action")]
    pub id: ActionId,
    /// Extents that have memory from now on.
    pub granted: Vec<u32>,
    /// Idle extents that have none any more.
    pub withdrawn: Vec<u32>,
}

/// What the scheduler lacks. It is sent unasked, when it changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// Blocks that scheduling lacked in the last try.
    pub wanted_blocks: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Requests that run.
    pub running: u32,
    /// Requests that wait for blocks, each with the blocks that it needs; at most [`MAX_BLOCKED`].
    pub blocked: Vec<(String, u32)>,
}

/// A message of the scheduler's link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerMessage {
    /// Scheduler: the first message.
    Hello(SchedulerHello),
    /// Sidecar: the reply to `Hello`.
    Setup(SchedulerSetup),
    /// Sidecar: run no further step, and wait for those in flight.
    Hold {
        /// Identifies the reply.
        id: ActionId,
    },
    /// Scheduler: the reply to `Hold`.
    Held(Held),
    /// Sidecar, while held: give up this number of extents, idle ones first.
    Retire {
        /// Identifies the reply.
        id: ActionId,
        /// Extents.
        extents: u32,
    },
    /// Scheduler: the reply to `Retire`.
    Retired(Retired),
    /// Sidecar: steps may run again.
    Resume(Resume),
    /// Scheduler: what it lacks.
    Demand(Demand),
}

impl SchedulerMessage {
    /// Returns the message's kind.
    pub fn kind(&self) -> MessageKind {
        match self {
            SchedulerMessage::Hello(_) => MessageKind::SchedulerHello,
            SchedulerMessage::Setup(_) => MessageKind::SchedulerSetup,
            SchedulerMessage::Hold { .. } => MessageKind::Hold,
            SchedulerMessage::Held(_) => MessageKind::Held,
            SchedulerMessage::Retire { .. } => MessageKind::Retire,
            SchedulerMessage::Retired(_) => MessageKind::Retired,
            SchedulerMessage::Resume(_) => MessageKind::Resume,
            SchedulerMessage::Demand(_) => MessageKind::Demand,
        }
    }

    /// Returns the number of file descriptors that the message carries.
    pub fn descriptors(&self) -> usize {
        match self {
            SchedulerMessage::Hello(_) => 1,
            SchedulerMessage::Setup(_) => 2,
            _ => 0,
        }
    }

    /// Refuses sizes above their limits. Both ends call it.
    pub fn check(&self) -> Result<(), SetupError> {
        match self {
            SchedulerMessage::Hello(hello) => {
                check_name("build", &hello.build)?;
                check_name("engine", &hello.engine)
            }
            SchedulerMessage::Setup(setup) => {
                check_extents("extents", setup.extents as usize)?;
                check_extents("granted", setup.granted.len())
            }
            SchedulerMessage::Held(held) => check_extents("idle", held.idle.len()),
            SchedulerMessage::Retired(retired) => check_extents("extents", retired.extents.len()),
            SchedulerMessage::Resume(resume) => {
                check_extents("granted and withdrawn", resume.granted.len() + resume.withdrawn.len())
            }
            SchedulerMessage::Demand(demand) => check_blocked(&demand.blocked),
            SchedulerMessage::Hold { .. } | SchedulerMessage::Retire { .. } => Ok(()),
        }
    }
}

fn check_blocked(blocked: &[(String, u32)]) -> Result<(), SetupError> {
    within("blocked", blocked.len() as u64, blocked.len() <= MAX_BLOCKED, "at most 1024 requests")?;
    blocked.iter().try_for_each(|(request, _)| check_name("request", request))
}

fn check_extents(field: &'static str, extents: usize) -> Result<(), SetupError> {
    within(field, extents as u64, extents <= MAX_EXTENTS, "at most 2^20 extents")
}

//! Why a sidecar refuses an engine that schedules by itself.

use serde::{Deserialize, Serialize};

use super::setup::{SetupError, within};

/// Most bytes of a reason in words.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Sidecar: a `WorkerHello`, `SchedulerHello` or `KvLayout` is refused, and the link ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupRefused {
    /// The reason.
    pub reason: RefusalReason,
    /// The reason in words, for the engine's log.
    pub message: String,
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// The worker is not rank 0 of 1.
    Ranks,
    /// The engine or its version is not supported here.
    Engine,
    /// The model is not the tenant's.
    Model,
    /// Another worker or scheduler is connected, or the exit of the last one is not confirmed.
    Occupied,
    /// The KV layout cannot be backed by chunks.
    Layout,
    /// Another reason.
    Other,
}

impl std::fmt::Display for RefusalReason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            RefusalReason::Ranks => "ranks",
            RefusalReason::Engine => "engine",
            RefusalReason::Model => "model",
            RefusalReason::Occupied => "occupied",
            RefusalReason::Layout => "layout",
            RefusalReason::Other => "other",
        })
    }
}

impl SetupRefused {
    /// Creates a refusal. A longer message is cut at [`MAX_MESSAGE_BYTES`].
    pub fn new(reason: RefusalReason, message: impl Into<String>) -> SetupRefused {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        SetupRefused { reason, message }
    }

    /// Refuses a message that is too long.
    pub fn check(&self) -> Result<(), SetupError> {
        let bytes = self.message.len();
        within("message", bytes as u64, bytes <= MAX_MESSAGE_BYTES, "at most 4096 bytes")
    }
}

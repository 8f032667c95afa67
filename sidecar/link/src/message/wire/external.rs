//! Wire form of the messages of an engine that schedules by itself. They consist of plain data, so their own serde forms
//! are their wire forms.

use sluice_policy::ids::ActionId;

use super::codec::{bytes, read};
use crate::frame::{MessageKind, ProtocolError};
use crate::message::{Message, SchedulerMessage, SetupError, SetupRefused, WorkerMessage};

/// Encodes the payload of a worker's message.
pub(super) fn encode_worker(message: &WorkerMessage) -> Vec<u8> {
    match message {
        WorkerMessage::Hello(hello) => bytes(hello),
        WorkerMessage::Setup(setup) => bytes(setup),
        WorkerMessage::Zero(zero) => bytes(zero),
        WorkerMessage::Loaded(loaded) => bytes(loaded),
        WorkerMessage::Captured => Vec::new(),
        WorkerMessage::KvLayout(layout) => bytes(layout),
        WorkerMessage::KvAccepted(extents) => bytes(extents),
        WorkerMessage::Moving(moving) => bytes(moving),
    }
}

/// Encodes the payload of a scheduler's message.
pub(super) fn encode_scheduler(message: &SchedulerMessage) -> Vec<u8> {
    match message {
        SchedulerMessage::Hello(hello) => bytes(hello),
        SchedulerMessage::Setup(setup) => bytes(setup),
        SchedulerMessage::Hold { id } => bytes(&id.0),
        SchedulerMessage::Held(held) => bytes(held),
        SchedulerMessage::Retire { id, extents } => bytes(&(id.0, extents)),
        SchedulerMessage::Retired(retired) => bytes(retired),
        SchedulerMessage::Resume(resume) => bytes(resume),
        SchedulerMessage::Demand(demand) => bytes(demand),
    }
}

/// Decodes a payload of one of these kinds.
pub(super) fn decode(kind: MessageKind, payload: &[u8]) -> Result<Message, ProtocolError> {
    let message = match decode_worker(kind, payload)? {
        Some(message) => Message::Worker(message),
        None if kind == MessageKind::SetupRefused => Message::SetupRefused(read(kind, payload)?),
        None => Message::Scheduler(decode_scheduler(kind, payload)?),
    };
    check(&message).map_err(|error| ProtocolError::Payload { kind, reason: error.to_string() })?;
    Ok(message)
}

fn check(message: &Message) -> Result<(), SetupError> {
    match message {
        Message::Worker(message) => message.check(),
        Message::Scheduler(message) => message.check(),
        Message::SetupRefused(refused) => SetupRefused::check(refused),
        _ => Ok(()),
    }
}

/// Returns `None` for a kind that is not a worker's.
fn decode_worker(kind: MessageKind, payload: &[u8]) -> Result<Option<WorkerMessage>, ProtocolError> {
    Ok(Some(match kind {
        MessageKind::WorkerHello => WorkerMessage::Hello(read(kind, payload)?),
        MessageKind::WorkerSetup => WorkerMessage::Setup(read(kind, payload)?),
        MessageKind::Zero => WorkerMessage::Zero(read(kind, payload)?),
        MessageKind::Loaded => WorkerMessage::Loaded(read(kind, payload)?),
        MessageKind::Captured => read::<()>(kind, payload).map(|()| WorkerMessage::Captured)?,
        MessageKind::KvLayout => WorkerMessage::KvLayout(read(kind, payload)?),
        MessageKind::KvAccepted => WorkerMessage::KvAccepted(read(kind, payload)?),
        MessageKind::Moving => WorkerMessage::Moving(read(kind, payload)?),
        _ => return Ok(None),
    }))
}

fn decode_scheduler(kind: MessageKind, payload: &[u8]) -> Result<SchedulerMessage, ProtocolError> {
    Ok(match kind {
        MessageKind::SchedulerHello => SchedulerMessage::Hello(read(kind, payload)?),
        MessageKind::SchedulerSetup => SchedulerMessage::Setup(read(kind, payload)?),
        MessageKind::Hold => SchedulerMessage::Hold { id: ActionId(read(kind, payload)?) },
        MessageKind::Held => SchedulerMessage::Held(read(kind, payload)?),
        MessageKind::Retire => {
            let (id, extents) = read(kind, payload)?;
            SchedulerMessage::Retire { id: ActionId(id), extents }
        }
        MessageKind::Retired => SchedulerMessage::Retired(read(kind, payload)?),
        MessageKind::Resume => SchedulerMessage::Resume(read(kind, payload)?),
        MessageKind::Demand => SchedulerMessage::Demand(read(kind, payload)?),
        other => return Err(ProtocolError::Kind { got: other as u16 }),
    })
}

//! Joins commands that span several messages. The engine applies none of a command before its last part has arrived.

use std::os::fd::OwnedFd;

use sluice_policy::action::MapOp;
use sluice_policy::ids::{ActionId, ChunkId, KvChunkId};

use crate::error::LinkError;
use crate::frame::ProtocolError;
use crate::message::{Message, WorkerMessage, Zero};
use crate::server::MAX_REMAP_OPS;
use crate::socket::Receiver;

/// A complete command that changes the memory of an engine.
#[derive(Debug)]
pub(super) enum MemoryCommand {
    Chunks(Vec<(ChunkId, OwnedFd)>),
    Release { id: ActionId, chunks: Vec<ChunkId> },
    Remap { id: ActionId, ops: Vec<MapOp> },
    Zero { id: ActionId, positions: Vec<KvChunkId> },
}

/// What a message is.
#[derive(Debug)]
pub(super) enum Joined {
    Memory(MemoryCommand),
    Other(Message),
}

/// Receives the rest of the command that begins with `first`, if it is one of these.
pub(super) fn join(
    receiver: &mut Receiver,
    first: Message,
    descriptors: Vec<OwnedFd>,
) -> Result<Joined, LinkError> {
    let command = match first {
        Message::Remap { id, ops, more } => {
            let part = |message| match message {
                Message::Remap { id: same, ops, more } if same == id => Ok((ops, more)),
                other => Err(LinkError::unexpected(&other, "the rest of an order of changes")),
            };
            MemoryCommand::Remap { id, ops: recv_rest(receiver, ops, more, part)? }
        }
        Message::Chunks { chunks } => MemoryCommand::Chunks(chunks.into_iter().zip(descriptors).collect()),
        Message::Release { id, chunks, more } => {
            let part = |message| match message {
                Message::Release { id: same, chunks, more } if same == id => Ok((chunks, more)),
                other => Err(LinkError::unexpected(&other, "the rest of an order of releases")),
            };
            MemoryCommand::Release { id, chunks: recv_rest(receiver, chunks, more, part)? }
        }
        Message::Worker(WorkerMessage::Zero(Zero { id, positions, more })) => {
            let part = |message| match message {
                Message::Worker(WorkerMessage::Zero(Zero { id: same, positions, more })) if same == id => {
                    Ok((positions, more))
                }
                other => Err(LinkError::unexpected(&other, "the rest of an order of zeros")),
            };
            MemoryCommand::Zero { id, positions: recv_rest(receiver, positions, more, part)? }
        }
        other => return Ok(Joined::Other(other)),
    };
    Ok(Joined::Memory(command))
}

fn recv_rest<T>(
    receiver: &mut Receiver,
    mut parts: Vec<T>,
    mut more: bool,
    part: impl Fn(Message) -> Result<(Vec<T>, bool), LinkError>,
) -> Result<Vec<T>, LinkError> {
    while more {
        let (next, followed) = part(receiver.recv()?.0)?;
        append(&mut parts, next)?;
        more = followed;
    }
    Ok(parts)
}

/// Appends the next part of a command, within the limit of a command.
fn append<T>(whole: &mut Vec<T>, part: Vec<T>) -> Result<(), LinkError> {
    whole.extend(part);
    if whole.len() > MAX_REMAP_OPS {
        return Err(ProtocolError::Oversized { got: whole.len(), limit: MAX_REMAP_OPS }.into());
    }
    Ok(())
}

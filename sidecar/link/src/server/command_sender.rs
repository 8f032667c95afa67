//! The commands that change the memory of an engine, whatever schedules it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sluice_policy::action::MapOp;
use sluice_policy::ids::{ActionId, ChunkId, KvChunkId};

use crate::error::LinkError;
use crate::frame::ProtocolError;
use crate::message::{CHUNKS_PER_MESSAGE, Message, WorkerMessage, Zero};
use crate::message_counters::MessageCounters;
use crate::socket::Sender;

/// Most changes in one `Remap` or `Release` message. A longer command is sent in several messages, which the engine joins first.
pub const REMAP_OPS: usize = 8192;
/// Most changes of one command: several per chunk of the largest pool.
pub const MAX_REMAP_OPS: usize = 1 << 24;

/// Sends commands and counts them. Clones share the socket.
#[derive(Clone, Debug)]
pub(super) struct CommandSender {
    sender: Sender,
    counters: Arc<MessageCounters>,
}

impl CommandSender {
    pub(super) fn new(sender: Sender, counters: Arc<MessageCounters>) -> CommandSender {
        CommandSender { sender, counters }
    }

    /// Sends changes of mappings as one command. Calls `expect` before, once the command is known to be valid.
    pub(super) fn send_remap(
        &self,
        id: ActionId,
        ops: &[MapOp],
        expect: impl FnOnce(),
    ) -> Result<(), LinkError> {
        self.send_parts(ops, expect, |ops, more| Message::Remap { id, ops, more })
    }

    /// As [`CommandSender::send_remap`], for chunks whose imports end.
    pub(super) fn send_release(
        &self,
        id: ActionId,
        chunks: &[ChunkId],
        expect: impl FnOnce(),
    ) -> Result<(), LinkError> {
        self.send_parts(chunks, expect, |chunks, more| Message::Release { id, chunks, more })
    }

    /// As [`CommandSender::send_remap`], for positions of the KV range that are filled with zeros.
    pub(super) fn send_zero(
        &self,
        id: ActionId,
        positions: &[KvChunkId],
        expect: impl FnOnce(),
    ) -> Result<(), LinkError> {
        let message = |positions, more| Message::Worker(WorkerMessage::Zero(Zero { id, positions, more }));
        self.send_parts(positions, expect, message)
    }

    /// Sends a command of any length in messages of at most [`REMAP_OPS`] items, at least one.
    fn send_parts<T: Clone>(
        &self,
        items: &[T],
        expect: impl FnOnce(),
        message: impl Fn(Vec<T>, bool) -> Message,
    ) -> Result<(), LinkError> {
        if items.len() > MAX_REMAP_OPS {
            return Err(ProtocolError::Oversized { got: items.len(), limit: MAX_REMAP_OPS }.into());
        }
        expect();
        let mut rest = items;
        loop {
            let (now, later) = rest.split_at(rest.len().min(REMAP_OPS));
            let more = !later.is_empty();
            self.send(&message(now.to_vec(), more))?;
            if !more {
                return Ok(());
            }
            rest = later;
        }
    }

    /// Sends chunks of a GPU, each with its descriptor.
    pub(super) fn send_chunks(&self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), LinkError> {
        for batch in chunks.chunks(CHUNKS_PER_MESSAGE) {
            let message = Message::Chunks { chunks: batch.iter().map(|(chunk, _)| *chunk).collect() };
            let descriptors: Vec<_> = batch.iter().map(|(_, fd)| fd.as_fd()).collect();
            self.sender.send(&message, &descriptors)?;
            self.counters.on_sent();
        }
        Ok(())
    }

    /// Sends a message without descriptors.
    pub(super) fn send(&self, message: &Message) -> Result<(), LinkError> {
        self.sender.send(message, &[])?;
        self.counters.on_sent();
        Ok(())
    }

    /// Returns the socket.
    pub(super) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Returns the messages in both directions.
    pub(super) fn messages(&self) -> u64 {
        self.counters.total()
    }

    /// Cuts the link.
    pub(super) fn shutdown(&self) {
        self.sender.shutdown();
    }
}

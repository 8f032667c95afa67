//! The sidecar's end of the link to the worker of an engine that schedules by itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_policy::action::MapOp;
use sluice_policy::ids::{ActionId, ChunkId, KvChunkId};

use super::command_sender::CommandSender;
use super::expected_worker_replies::ExpectedWorkerReplies;
use super::handshake_refusal::refuse;
use crate::control::ControlPage;
use crate::error::LinkError;
use crate::message::{
    Device, KvExtents, KvLayout, Loaded, Message, Moving, RefusalReason, WorkerHello, WorkerMessage,
    WorkerSetup,
};
use crate::message_counters::MessageCounters;
use crate::process_exit::{PeerProcess, own_pidfd};
use crate::socket::{Receiver, Sender};

/// A worker that has sent its hello and has received nothing. It is rank 0 of 1.
#[derive(Debug)]
pub struct WorkerHandshake {
    sender: Sender,
    receiver: Receiver,
    hello: WorkerHello,
    process: PeerProcess,
}

/// Memory that the sidecar shares with a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerMemory<'a> {
    /// The pool's memfd, in which chunk `c` is at `c * chunk_bytes`; `None` on a GPU.
    pub pool: Option<BorrowedFd<'a>>,
    /// A page with passes ([`ControlPage::create_with_passes`]).
    pub control: &'a ControlPage,
    /// An open file that the worker keeps until it exits: locks on it hold until both processes have exited.
    pub lifetime_lock: BorrowedFd<'a>,
}

impl WorkerHandshake {
    /// Takes a connection whose first message is `hello`. Refuses a worker that is one of several.
    pub(super) fn new(
        sender: Sender,
        receiver: Receiver,
        hello: WorkerHello,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<WorkerHandshake, LinkError> {
        let process = descriptors.pop().expect("a hello without its descriptor is refused on receipt");
        let (rank, ranks) = (hello.rank, hello.ranks);
        if (rank, ranks) != (0, 1) {
            let error = LinkError::Ranks { rank, ranks };
            refuse(&sender, RefusalReason::Ranks, error.to_string())?;
            return Err(error);
        }
        Ok(WorkerHandshake { sender, receiver, hello, process: PeerProcess::new(process) })
    }

    /// Returns the worker's identity.
    pub fn hello(&self) -> &WorkerHello {
        &self.hello
    }

    /// Refuses the worker. It receives the reason.
    pub fn refuse(self, reason: RefusalReason, message: impl Into<String>) -> Result<(), LinkError> {
        refuse(&self.sender, reason, message)
    }

    /// Sends the sizes and the memory. Waits only for space in the socket.
    pub fn send_setup(self, setup: &WorkerSetup, shared: WorkerMemory<'_>) -> Result<WorkerLink, LinkError> {
        setup.check()?;
        let own = own_pidfd()?;
        assert_eq!(shared.pool.is_some(), setup.device == Device::Host, "host memory alone is one file");
        let others = [shared.control.fd(), shared.lifetime_lock, own.as_fd()];
        let descriptors: Vec<_> = shared.pool.into_iter().chain(others).collect();
        self.sender.send(&Message::Worker(WorkerMessage::Setup(setup.clone())), &descriptors)?;
        let expected = Arc::new(Mutex::new(ExpectedWorkerReplies::new(setup)));
        let counters = Arc::new(MessageCounters::default());
        Ok(WorkerLink {
            hello: self.hello,
            sender: WorkerSender {
                commands: CommandSender::new(self.sender, counters.clone()),
                expected: expected.clone(),
            },
            receiver: WorkerReceiver { receiver: self.receiver, expected, counters },
            process: self.process,
        })
    }
}

/// A worker that has received its memory. Nothing is mapped yet.
#[derive(Debug)]
pub struct WorkerLink {
    /// Its identity.
    pub hello: WorkerHello,
    /// Commands to it.
    pub sender: WorkerSender,
    /// Messages from it, for a thread of their own.
    pub receiver: WorkerReceiver,
    /// Its process, to confirm its exit.
    pub process: PeerProcess,
}

/// Sends commands to a worker. Clones share the socket; the owner keeps the commands in order.
#[derive(Clone, Debug)]
pub struct WorkerSender {
    commands: CommandSender,
    expected: Arc<Mutex<ExpectedWorkerReplies>>,
}

impl WorkerSender {
    /// Sends changes of mappings: one command of any length, applied completely or not at all, with one reply.
    pub fn send_remap(&self, id: ActionId, ops: &[MapOp]) -> Result<(), LinkError> {
        self.commands.send_remap(id, ops, || self.expected().expect(id))
    }

    /// Sends chunks of a GPU, each with its descriptor. The worker imports them and does not reply.
    pub fn send_chunks(&self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), LinkError> {
        self.commands.send_chunks(chunks)
    }

    /// Asks the worker to release its imports of `chunks`: one command of any length, with one reply.
    pub fn send_release(&self, id: ActionId, chunks: &[ChunkId]) -> Result<(), LinkError> {
        self.commands.send_release(id, chunks, || self.expected().expect(id))
    }

    /// Lets the worker fill positions of the KV range with zeros: one command of any length, with one reply.
    pub fn send_zero(&self, id: ActionId, positions: &[KvChunkId]) -> Result<(), LinkError> {
        self.commands.send_zero(id, positions, || self.expected().expect(id))
    }

    /// Announces the layers that move, with one reply. Must be sent only while no pass runs.
    pub fn send_moving(&self, moving: Moving) -> Result<(), LinkError> {
        let id = moving.id;
        let message = WorkerMessage::Moving(moving);
        message.check()?;
        self.expected().expect(id);
        self.commands.send(&Message::Worker(message))
    }

    /// Replies to `Loaded`: the sidecar has its master copy.
    pub fn send_captured(&self) -> Result<(), LinkError> {
        self.commands.send(&Message::Worker(WorkerMessage::Captured))
    }

    /// Replies to `KvLayout`.
    pub fn send_kv_accepted(&self, extents: KvExtents) -> Result<(), LinkError> {
        self.commands.send(&Message::Worker(WorkerMessage::KvAccepted(extents)))
    }

    /// Refuses the worker's KV layout, and ends the link. The worker receives the reason.
    pub fn refuse_layout(&self, message: impl Into<String>) -> Result<(), LinkError> {
        refuse(self.commands.sender(), RefusalReason::Layout, message)
    }

    /// Asks the worker to exit for good.
    pub fn send_bye(&self) -> Result<(), LinkError> {
        self.commands.send(&Message::Bye)
    }

    /// Returns the messages of this link since its handshake, in both directions.
    pub fn messages(&self) -> u64 {
        self.commands.messages()
    }

    /// Cuts the link: the worker exits, and the receiver's thread wakes with [`LinkError::Closed`].
    pub fn shutdown(&self) {
        self.commands.shutdown();
    }

    fn expected(&self) -> MutexGuard<'_, ExpectedWorkerReplies> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message of a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// A command was carried out completely.
    Applied {
        /// The command.
        id: ActionId,
    },
    /// A command was refused; nothing changed.
    Refused {
        /// The command.
        id: ActionId,
        /// The reason.
        message: String,
    },
    /// The parameters lie in their ranges and are final. To be answered by [`WorkerSender::send_captured`].
    Loaded(Loaded),
    /// Where KV blocks lie. To be answered by [`WorkerSender::send_kv_accepted`] or [`WorkerSender::refuse_layout`].
    KvLayout(KvLayout),
    /// The worker exits by itself.
    Bye,
}

/// Receives messages from a worker.
#[derive(Debug)]
pub struct WorkerReceiver {
    receiver: Receiver,
    expected: Arc<Mutex<ExpectedWorkerReplies>>,
    counters: Arc<MessageCounters>,
}

impl WorkerReceiver {
    /// Returns the next message. Blocks. After any error the worker counts as lost: confirm its exit first.
    pub fn recv(&mut self) -> Result<WorkerEvent, LinkError> {
        let (message, _) = self.receiver.recv()?;
        self.event(message)
    }

    /// As [`WorkerReceiver::recv`], but returns [`LinkError::Timeout`] if no message arrives within `limit`.
    pub fn recv_within(&mut self, limit: Duration) -> Result<WorkerEvent, LinkError> {
        let (message, _) = self.receiver.recv_within(limit)?;
        self.event(message)
    }

    /// Refuses a message that contradicts the commands sent.
    fn event(&self, message: Message) -> Result<WorkerEvent, LinkError> {
        self.counters.on_received();
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).check(&message)?;
        match message {
            Message::Applied { id } => Ok(WorkerEvent::Applied { id }),
            Message::Refused { id, message } => Ok(WorkerEvent::Refused { id, message }),
            Message::Worker(WorkerMessage::Loaded(loaded)) => Ok(WorkerEvent::Loaded(loaded)),
            Message::Worker(WorkerMessage::KvLayout(layout)) => Ok(WorkerEvent::KvLayout(layout)),
            Message::Bye => Ok(WorkerEvent::Bye),
            other => Err(LinkError::unexpected(&other, "a message of a worker")),
        }
    }
}

//! The end of a worker: the process of an engine that schedules by itself which runs the model.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::getpid;
use serde::Deserialize;
use sluice_policy::action::MapOp;
use sluice_policy::ids::{ActionId, ChunkId, KvChunkId};

use super::command_parts::{Joined, MemoryCommand, join};
use crate::control::ControlPage;
use crate::error::LinkError;
use crate::frame::{MessageKind, ProtocolError};
use crate::message::{
    Device, KvExtents, KvLayout, Loaded, Message, Moving, SetupRefused, WorkerHello, WorkerMessage,
    WorkerSetup,
};
use crate::process_exit::own_pidfd;
use crate::region::check_sealed;
use crate::server::connect;
use crate::socket::{self, Receiver, SEND_TIMEOUT, Sender};

/// Sizes and shared memory that the sidecar sent.
#[derive(Debug)]
pub struct WorkerWelcome {
    /// The sizes.
    pub setup: WorkerSetup,
    /// The pool of chunks; `None` on a GPU.
    pub pool: Option<OwnedFd>,
    /// Generations of layers, which are numbers of passes, and the passes themselves.
    pub control: ControlPage,
    /// Kept open until the worker exits: on a shared GPU, locks on it hold until both processes have exited.
    pub lifetime_lock: OwnedFd,
    /// A pidfd of the sidecar.
    pub sidecar: OwnedFd,
}

/// A command from the sidecar, or its reply.
#[derive(Debug)]
pub enum WorkerRequest {
    /// Import these chunks of a GPU. There is no reply.
    Chunks(Vec<(ChunkId, OwnedFd)>),
    /// Release the imports of these chunks, which are not mapped.
    Release {
        /// Identifies the reply.
        id: ActionId,
        /// The chunks.
        chunks: Vec<ChunkId>,
    },
    /// Change the chunks behind some addresses, in this order. No pass may run.
    Remap {
        /// Identifies the reply.
        id: ActionId,
        /// Changes.
        ops: Vec<MapOp>,
    },
    /// Fill these positions of the KV range with zeros. No pass may run.
    Zero {
        /// Identifies the reply.
        id: ActionId,
        /// The positions.
        positions: Vec<KvChunkId>,
    },
    /// These layers move from now on.
    Moving(Moving),
    /// The reply to `Loaded`.
    Captured,
    /// The reply to `KvLayout`.
    KvAccepted(KvExtents),
    /// The layout is refused, and the link ends.
    SetupRefused(SetupRefused),
    /// Exit.
    Bye,
}

/// A worker's link to the sidecar.
#[derive(Debug)]
pub struct WorkerClient {
    /// Messages to the sidecar.
    pub sender: WorkerReplies,
    /// Commands from it, for a thread of their own.
    pub receiver: WorkerRequests,
}

/// The identity of a worker, as it is announced.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerIdentity {
    /// Version of the adapter, for logs.
    pub build: String,
    /// Name and version of the engine.
    pub engine: String,
    /// Rank of this worker.
    pub rank: u32,
    /// Workers of the engine.
    pub ranks: u32,
}

impl WorkerClient {
    /// Connects to the sidecar's socket, and waits at most `limit` for its memory.
    ///
    /// # Errors
    /// Among others, [`LinkError::SetupRefused`] with the sidecar's reason.
    pub fn connect(
        path: &Path,
        identity: WorkerIdentity,
        limit: Duration,
    ) -> Result<(WorkerClient, WorkerWelcome), LinkError> {
        let WorkerIdentity { build, engine, rank, ranks } = identity;
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        let hello = WorkerHello { build, engine, pid, rank, ranks };
        hello.check()?;
        let own = own_pidfd()?;
        let (sender, mut receiver) = socket::split(connect(path)?, SEND_TIMEOUT)?;
        sender.send(&Message::Worker(WorkerMessage::Hello(hello)), &[own.as_fd()])?;
        let welcome = match receiver.recv_within(limit)? {
            (Message::Worker(WorkerMessage::Setup(setup)), descriptors) => welcome(setup, descriptors)?,
            (Message::SetupRefused(refused), _) => return Err(LinkError::SetupRefused(refused)),
            (other, _) => return Err(LinkError::unexpected(&other, "WorkerSetup")),
        };
        let awaited = Arc::new(AwaitedReplies::default());
        let client = WorkerClient {
            sender: WorkerReplies { sender, awaited: awaited.clone() },
            receiver: WorkerRequests { receiver, awaited },
        };
        Ok((client, welcome))
    }
}

fn welcome(setup: WorkerSetup, mut descriptors: Vec<OwnedFd>) -> Result<WorkerWelcome, LinkError> {
    let got = descriptors.len();
    let expected = WorkerMessage::Setup(setup.clone()).descriptors();
    let pool = (setup.device == Device::Host && got > 0).then(|| descriptors.remove(0));
    let [control, lifetime_lock, sidecar]: [OwnedFd; 3] = descriptors
        .try_into()
        .map_err(|_| ProtocolError::Descriptors { kind: MessageKind::WorkerSetup, got, expected })?;
    if let Some(pool) = &pool {
        check_sealed(pool.as_fd(), u64::from(setup.capacity_chunks) * setup.chunk_bytes)?;
    }
    let control = ControlPage::open_with_passes(control, setup.layers())?;
    Ok(WorkerWelcome { setup, pool, control, lifetime_lock, sidecar })
}

/// Whether a `Loaded` and a `KvLayout` were sent and are not answered.
#[derive(Debug, Default)]
struct AwaitedReplies {
    captured: AtomicBool,
    extents: AtomicBool,
}

impl AwaitedReplies {
    /// Ends the wait for a reply. Refuses a reply that nothing has asked for.
    fn take(&self, message: &WorkerMessage) -> Result<(), LinkError> {
        let awaited = match message {
            WorkerMessage::Captured => &self.captured,
            WorkerMessage::KvAccepted(_) => &self.extents,
            _ => return Ok(()),
        };
        if awaited.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let reason = "it answers what was not sent".to_owned();
        Err(ProtocolError::Contradiction { kind: message.kind(), reason }.into())
    }
}

/// Sends a worker's messages.
#[derive(Debug)]
pub struct WorkerReplies {
    sender: Sender,
    awaited: Arc<AwaitedReplies>,
}

impl WorkerReplies {
    /// Reports that all of a command is done.
    pub fn send_applied(&self, id: ActionId) -> Result<(), LinkError> {
        self.sender.send(&Message::Applied { id }, &[])
    }

    /// Reports that a command was refused and nothing changed.
    pub fn send_refused(&self, id: ActionId, message: String) -> Result<(), LinkError> {
        self.sender.send(&Message::Refused { id, message }, &[])
    }

    /// Reports that the parameters are final. The reply is [`WorkerRequest::Captured`].
    pub fn send_loaded(&self, loaded: Loaded) -> Result<(), LinkError> {
        let message = WorkerMessage::Loaded(loaded);
        message.check()?;
        self.awaited.captured.store(true, Ordering::SeqCst);
        self.sender.send(&Message::Worker(message), &[])
    }

    /// Reports where KV blocks lie. The reply is [`WorkerRequest::KvAccepted`] or [`WorkerRequest::SetupRefused`].
    pub fn send_kv_layout(&self, layout: KvLayout) -> Result<(), LinkError> {
        self.awaited.extents.store(true, Ordering::SeqCst);
        self.sender.send(&Message::Worker(WorkerMessage::KvLayout(layout)), &[])
    }

    /// Reports that this worker exits by itself.
    pub fn send_bye(&self) -> Result<(), LinkError> {
        self.sender.send(&Message::Bye, &[])
    }

    /// Cuts the link: the receiver's thread wakes with [`LinkError::Closed`].
    pub fn shutdown(&self) {
        self.sender.shutdown();
    }

    /// Returns the socket, which hangs up when the sidecar exits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sender.fd()
    }
}

/// Receives a worker's commands.
#[derive(Debug)]
pub struct WorkerRequests {
    receiver: Receiver,
    awaited: Arc<AwaitedReplies>,
}

impl WorkerRequests {
    /// Returns the next complete command. A command that spans several messages is one command. Blocks.
    pub fn recv(&mut self) -> Result<WorkerRequest, LinkError> {
        let (first, descriptors) = self.receiver.recv()?;
        self.request(first, descriptors)
    }

    /// As [`WorkerRequests::recv`], but returns [`LinkError::Timeout`] if no command begins within `limit`.
    pub fn recv_within(&mut self, limit: Duration) -> Result<WorkerRequest, LinkError> {
        let (first, descriptors) = self.receiver.recv_within(limit)?;
        self.request(first, descriptors)
    }

    fn request(&mut self, first: Message, descriptors: Vec<OwnedFd>) -> Result<WorkerRequest, LinkError> {
        let message = match join(&mut self.receiver, first, descriptors)? {
            Joined::Memory(command) => return Ok(command.into()),
            Joined::Other(message) => message,
        };
        match message {
            Message::Worker(message) => {
                self.awaited.take(&message)?;
                match message {
                    WorkerMessage::Moving(moving) => Ok(WorkerRequest::Moving(moving)),
                    WorkerMessage::Captured => Ok(WorkerRequest::Captured),
                    WorkerMessage::KvAccepted(extents) => Ok(WorkerRequest::KvAccepted(extents)),
                    other => Err(LinkError::unexpected(&Message::Worker(other), "an order for a worker")),
                }
            }
            Message::SetupRefused(refused) => Ok(WorkerRequest::SetupRefused(refused)),
            Message::Bye => Ok(WorkerRequest::Bye),
            other => Err(LinkError::unexpected(&other, "an order for a worker")),
        }
    }
}

impl From<MemoryCommand> for WorkerRequest {
    fn from(command: MemoryCommand) -> Self {
        match command {
            MemoryCommand::Chunks(chunks) => WorkerRequest::Chunks(chunks),
            MemoryCommand::Release { id, chunks } => WorkerRequest::Release { id, chunks },
            MemoryCommand::Remap { id, ops } => WorkerRequest::Remap { id, ops },
            MemoryCommand::Zero { id, positions } => WorkerRequest::Zero { id, positions },
        }
    }
}

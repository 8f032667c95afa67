//! The end of a scheduler: the process of an engine that schedules by itself which decides what runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::process::getpid;
use serde::Deserialize;
use sluice_policy::ids::ActionId;

use crate::error::LinkError;
use crate::frame::{MessageKind, ProtocolError};
use crate::message::{
    Demand, Held, Message, Resume, Retired, SchedulerHello, SchedulerMessage, SchedulerSetup,
};
use crate::process_exit::own_pidfd;
use crate::server::connect;
use crate::socket::{self, Receiver, SEND_TIMEOUT, Sender};

/// The extents that the sidecar grants.
#[derive(Debug)]
pub struct SchedulerWelcome {
    /// The extents.
    pub setup: SchedulerSetup,
    /// A pidfd of the sidecar.
    pub sidecar: OwnedFd,
    /// Kept open until the scheduler exits: on a shared GPU, locks on it hold until both processes have exited.
    pub lifetime_lock: OwnedFd,
}

/// A command from the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerRequest {
    /// Run no further step, and reply when none is in flight.
    Hold {
        /// Identifies the reply.
        id: ActionId,
    },
    /// Give up this number of extents.
    Retire {
        /// Identifies the reply.
        id: ActionId,
        /// Extents.
        extents: u32,
    },
    /// Run steps again.
    Resume(Resume),
    /// Exit.
    Bye,
}

/// The identity of a scheduler, as it is announced.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerIdentity {
    /// Version of the adapter, for logs.
    pub build: String,
    /// Name and version of the engine.
    pub engine: String,
    /// Blocks for which the engine has addresses.
    pub blocks: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Most tokens of one request.
    pub max_model_len: u32,
}

/// A scheduler's link to the sidecar.
#[derive(Debug)]
pub struct SchedulerClient {
    /// Messages to the sidecar.
    pub sender: SchedulerReplies,
    /// Commands from it, for a thread of their own.
    pub receiver: SchedulerRequests,
}

impl SchedulerClient {
    /// Connects to the sidecar's socket, and waits at most `limit` for its extents.
    ///
    /// # Errors
    /// Among others, [`LinkError::SetupRefused`] with the sidecar's reason.
    pub fn connect(
        path: &Path,
        identity: SchedulerIdentity,
        limit: Duration,
    ) -> Result<(SchedulerClient, SchedulerWelcome), LinkError> {
        let SchedulerIdentity { build, engine, blocks, block_tokens, max_model_len } = identity;
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        let hello = SchedulerHello { build, engine, pid, blocks, block_tokens, max_model_len };
        let hello = SchedulerMessage::Hello(hello);
        hello.check()?;
        let own = own_pidfd()?;
        let (sender, mut receiver) = socket::split(connect(path)?, SEND_TIMEOUT)?;
        sender.send(&Message::Scheduler(hello), &[own.as_fd()])?;
        let welcome = match receiver.recv_within(limit)? {
            (Message::Scheduler(SchedulerMessage::Setup(setup)), descriptors) => welcome(setup, descriptors)?,
            (Message::SetupRefused(refused), _) => return Err(LinkError::SetupRefused(refused)),
            (other, _) => return Err(LinkError::unexpected(&other, "SchedulerSetup")),
        };
        let client =
            SchedulerClient { sender: SchedulerReplies { sender }, receiver: SchedulerRequests { receiver } };
        Ok((client, welcome))
    }
}

fn welcome(setup: SchedulerSetup, descriptors: Vec<OwnedFd>) -> Result<SchedulerWelcome, LinkError> {
    let got = descriptors.len();
    let [sidecar, lifetime_lock]: [OwnedFd; 2] = descriptors
        .try_into()
        .map_err(|_| ProtocolError::Descriptors { kind: MessageKind::SchedulerSetup, got, expected: 2 })?;
    Ok(SchedulerWelcome { setup, sidecar, lifetime_lock })
}

/// Sends a scheduler's messages.
#[derive(Debug)]
pub struct SchedulerReplies {
    sender: Sender,
}

impl SchedulerReplies {
    /// Reports that no step runs.
    pub fn send_held(&self, held: Held) -> Result<(), LinkError> {
        self.send(SchedulerMessage::Held(held))
    }

    /// Reports the extents that were given up.
    pub fn send_retired(&self, retired: Retired) -> Result<(), LinkError> {
        self.send(SchedulerMessage::Retired(retired))
    }

    /// Reports what the scheduler lacks.
    pub fn send_demand(&self, demand: Demand) -> Result<(), LinkError> {
        self.send(SchedulerMessage::Demand(demand))
    }

    /// Reports that this scheduler exits by itself.
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

    fn send(&self, message: SchedulerMessage) -> Result<(), LinkError> {
        message.check()?;
        self.sender.send(&Message::Scheduler(message), &[])
    }
}

/// Receives a scheduler's commands.
#[derive(Debug)]
pub struct SchedulerRequests {
    receiver: Receiver,
}

impl SchedulerRequests {
    /// Returns the next command. Blocks.
    pub fn recv(&mut self) -> Result<SchedulerRequest, LinkError> {
        request(self.receiver.recv()?.0)
    }

    /// As [`SchedulerRequests::recv`], but returns [`LinkError::Timeout`] if no command arrives within `limit`.
    pub fn recv_within(&mut self, limit: Duration) -> Result<SchedulerRequest, LinkError> {
        request(self.receiver.recv_within(limit)?.0)
    }
}

fn request(message: Message) -> Result<SchedulerRequest, LinkError> {
    match message {
        Message::Scheduler(SchedulerMessage::Hold { id }) => Ok(SchedulerRequest::Hold { id }),
        Message::Scheduler(SchedulerMessage::Retire { id, extents }) => {
            Ok(SchedulerRequest::Retire { id, extents })
        }
        Message::Scheduler(SchedulerMessage::Resume(resume)) => Ok(SchedulerRequest::Resume(resume)),
        Message::Bye => Ok(SchedulerRequest::Bye),
        other => Err(LinkError::unexpected(&other, "an order for a scheduler")),
    }
}

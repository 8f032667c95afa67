//! The sidecar's end of the link to the scheduler of an engine that schedules by itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_policy::ids::ActionId;

use super::expected_extents::ExpectedExtents;
use super::handshake_refusal::refuse;
use crate::error::LinkError;
use crate::message::{
    Demand, Held, Message, RefusalReason, Resume, Retired, SchedulerHello, SchedulerMessage, SchedulerSetup,
};
use crate::process_exit::{PeerProcess, own_pidfd};
use crate::socket::{Receiver, Sender};

/// A scheduler that has sent its hello and has received nothing.
#[derive(Debug)]
pub struct SchedulerHandshake {
    sender: Sender,
    receiver: Receiver,
    hello: SchedulerHello,
    process: PeerProcess,
}

impl SchedulerHandshake {
    /// Takes a connection whose first message is `hello`.
    pub(super) fn new(
        sender: Sender,
        receiver: Receiver,
        hello: SchedulerHello,
        mut descriptors: Vec<OwnedFd>,
    ) -> SchedulerHandshake {
        let process = descriptors.pop().expect("a hello without its descriptor is refused on receipt");
        SchedulerHandshake { sender, receiver, hello, process: PeerProcess::new(process) }
    }

    /// Returns the scheduler's identity.
    pub fn hello(&self) -> &SchedulerHello {
        &self.hello
    }

    /// Refuses the scheduler. It receives the reason.
    pub fn refuse(self, reason: RefusalReason, message: impl Into<String>) -> Result<(), LinkError> {
        refuse(&self.sender, reason, message)
    }

    /// Sends the extents that have memory. `lifetime_lock` is an open file that the scheduler keeps until it exits.
    ///
    /// # Errors
    /// Among others, `setup` grants an extent twice or one that there is not.
    pub fn send_setup(
        self,
        setup: &SchedulerSetup,
        lifetime_lock: BorrowedFd<'_>,
    ) -> Result<SchedulerLink, LinkError> {
        let message = SchedulerMessage::Setup(setup.clone());
        message.check()?;
        let expected = Arc::new(Mutex::new(ExpectedExtents::new(setup)?));
        let own = own_pidfd()?;
        self.sender.send(&Message::Scheduler(message), &[own.as_fd(), lifetime_lock])?;
        Ok(SchedulerLink {
            hello: self.hello,
            sender: SchedulerSender { sender: self.sender, expected: expected.clone() },
            receiver: SchedulerReceiver { receiver: self.receiver, expected },
            process: self.process,
        })
    }
}

/// A scheduler that knows its extents. It runs steps.
#[derive(Debug)]
pub struct SchedulerLink {
    /// Its identity.
    pub hello: SchedulerHello,
    /// Commands to it.
    pub sender: SchedulerSender,
    /// Messages from it, for a thread of their own.
    pub receiver: SchedulerReceiver,
    /// Its process, to confirm its exit.
    pub process: PeerProcess,
}

/// Sends commands to a scheduler. Clones share the socket; the owner keeps the commands in order.
///
/// A command that does not fit the state of the scheduler (a second `Hold`, a `Retire` of a scheduler that runs) fails
/// with [`ProtocolError::Contradiction`](crate::frame::ProtocolError::Contradiction) and is not sent.
#[derive(Clone, Debug)]
pub struct SchedulerSender {
    sender: Sender,
    expected: Arc<Mutex<ExpectedExtents>>,
}

impl SchedulerSender {
    /// Lets the scheduler stop; the reply is [`SchedulerEvent::Held`].
    pub fn send_hold(&self, id: ActionId) -> Result<(), LinkError> {
        self.send_command(SchedulerMessage::Hold { id })
    }

    /// While held, lets the scheduler give up `extents` extents; the reply is [`SchedulerEvent::Retired`].
    pub fn send_retire(&self, id: ActionId, extents: u32) -> Result<(), LinkError> {
        self.send_command(SchedulerMessage::Retire { id, extents })
    }

    /// Lets the scheduler run steps again, without a reply.
    pub fn send_resume(&self, resume: Resume) -> Result<(), LinkError> {
        self.send_command(SchedulerMessage::Resume(resume))
    }

    /// Asks the scheduler to exit for good.
    pub fn send_bye(&self) -> Result<(), LinkError> {
        self.sender.send(&Message::Bye, &[])
    }

    /// Cuts the link: the scheduler exits, and the receiver's thread wakes with [`LinkError::Closed`].
    pub fn shutdown(&self) {
        self.sender.shutdown();
    }

    fn send_command(&self, command: SchedulerMessage) -> Result<(), LinkError> {
        command.check()?;
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).expect(&command)?;
        self.sender.send(&Message::Scheduler(command), &[])
    }
}

/// A message of a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedulerEvent {
    /// No step runs.
    Held(Held),
    /// Extents were given up.
    Retired(Retired),
    /// What the scheduler lacks.
    Demand(Demand),
    /// The scheduler exits by itself.
    Bye,
}

/// Receives messages from a scheduler.
#[derive(Debug)]
pub struct SchedulerReceiver {
    receiver: Receiver,
    expected: Arc<Mutex<ExpectedExtents>>,
}

impl SchedulerReceiver {
    /// Returns the next message. Blocks. After any error the scheduler counts as lost: confirm its exit first.
    pub fn recv(&mut self) -> Result<SchedulerEvent, LinkError> {
        let (message, _) = self.receiver.recv()?;
        self.event(message)
    }

    /// As [`SchedulerReceiver::recv`], but returns [`LinkError::Timeout`] if no message arrives within `limit`.
    pub fn recv_within(&mut self, limit: Duration) -> Result<SchedulerEvent, LinkError> {
        let (message, _) = self.receiver.recv_within(limit)?;
        self.event(message)
    }

    /// Refuses a message that contradicts the commands sent.
    fn event(&self, message: Message) -> Result<SchedulerEvent, LinkError> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).check(&message)?;
        match message {
            Message::Scheduler(SchedulerMessage::Held(held)) => Ok(SchedulerEvent::Held(held)),
            Message::Scheduler(SchedulerMessage::Retired(retired)) => Ok(SchedulerEvent::Retired(retired)),
            Message::Scheduler(SchedulerMessage::Demand(demand)) => Ok(SchedulerEvent::Demand(demand)),
            Message::Bye => Ok(SchedulerEvent::Bye),
            other => Err(LinkError::unexpected(&other, "a message of a scheduler")),
        }
    }
}

//! The sidecar's end: the listener, the handshake, and both halves of the link to one engine. [`worker`] and
//! [`scheduler`] are its ends of the links to an engine that schedules by itself.

mod command_sender;
mod expected_extents;
mod expected_worker_replies;
mod handshake_refusal;
mod listener;
pub mod scheduler;
pub mod worker;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_policy::action::MapOp;
use sluice_policy::ids::{ActionId, ChunkId, StepId};
use sluice_ports::compute::{EngineHello, Step, StepDone};

use crate::control::ControlPage;
use crate::error::LinkError;
use crate::expected_replies::ExpectedReplies;
use crate::frame::{MessageKind, ProtocolError};
use crate::message::{
    Device, EngineSetup, Hello, Message, RefusalReason, SchedulerMessage, SequenceOrder, StepOrder,
    WorkerMessage,
};
use crate::message_counters::MessageCounters;
use crate::process_exit::{PeerProcess, own_pidfd};
use crate::slab::reference_digest;
use crate::socket::{Receiver, Sender};
use crate::tables::TableWriter;
use command_sender::CommandSender;
pub use command_sender::{MAX_REMAP_OPS, REMAP_OPS};
pub(crate) use listener::connect;
pub use listener::{Connection, Listener};
use scheduler::SchedulerHandshake;
use worker::WorkerHandshake;

/// Longest wait for each reply of the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory that the sidecar shares with an engine.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory<'a> {
    /// The pool's memfd, in which chunk `c` is at `c * chunk_bytes`; `None` on a GPU.
    pub pool: Option<BorrowedFd<'a>>,
    /// Generations of each layer's weights and KV.
    pub control: &'a ControlPage,
    /// Block tables and token histories.
    pub tables: &'a TableWriter,
    /// An open file that the engine keeps until it exits: locks on it hold until both processes have exited.
    pub lifetime_lock: BorrowedFd<'a>,
}

/// An engine that has reserved its ranges. Nothing is mapped yet: send the whole mapping, then steps.
#[derive(Debug)]
pub struct EngineLink {
    /// Process id and activation cost, as the engine reports them.
    pub hello: EngineHello,
    /// Version of its build.
    pub build: String,
    /// Commands to it.
    pub sender: EngineSender,
    /// Replies from it, for a thread of their own.
    pub receiver: EngineReceiver,
    /// Its process, to confirm its exit.
    pub process: PeerProcess,
    /// The process that starts its successor; the engine itself if it has none.
    pub supervisor: PeerProcess,
}

/// A process that has sent its `Hello` and has received nothing.
#[derive(Debug)]
pub struct HandshakeHello {
    sender: Sender,
    receiver: Receiver,
    hello: Hello,
}

/// A process that has received the model and its memory and has not reserved its ranges.
#[derive(Debug)]
pub struct HandshakeSetup {
    sender: Sender,
    receiver: Receiver,
    hello: Hello,
}

/// A process that has sent its first message, which says what it is.
#[derive(Debug)]
pub enum FirstMessage {
    /// An engine that runs the sidecar's steps.
    Engine(HandshakeHello),
    /// The worker of an engine that schedules by itself.
    Worker(WorkerHandshake),
    /// The scheduler of such an engine.
    Scheduler(SchedulerHandshake),
}

impl Connection {
    /// Receives the first message, of any kind of engine. Takes up to [`HANDSHAKE_TIMEOUT`].
    ///
    /// # Errors
    /// Among others, [`LinkError::Ranks`] for a worker that is not alone. It has received the reason.
    pub fn recv_first(mut self) -> Result<FirstMessage, LinkError> {
        let (first, descriptors) = self.receiver.recv_within(HANDSHAKE_TIMEOUT)?;
        let Connection { sender, receiver } = self;
        match first {
            Message::Hello(hello) => {
                let ours = reference_digest();
                if hello.layout_digest != ours {
                    return Err(LinkError::Digest { ours, theirs: hello.layout_digest });
                }
                Ok(FirstMessage::Engine(HandshakeHello { sender, receiver, hello }))
            }
            Message::Worker(WorkerMessage::Hello(hello)) => {
                WorkerHandshake::new(sender, receiver, hello, descriptors).map(FirstMessage::Worker)
            }
            Message::Scheduler(SchedulerMessage::Hello(hello)) => {
                Ok(FirstMessage::Scheduler(SchedulerHandshake::new(sender, receiver, hello, descriptors)))
            }
            other => Err(LinkError::unexpected(&other, "Hello")),
        }
    }

    /// Receives the `Hello` of an engine that runs the sidecar's steps, and refuses all others. Takes up to
    /// [`HANDSHAKE_TIMEOUT`].
    pub fn recv_hello(self) -> Result<HandshakeHello, LinkError> {
        let reason = "this sidecar starts an engine of its own";
        let got = match self.recv_first()? {
            FirstMessage::Engine(engine) => return Ok(engine),
            FirstMessage::Worker(worker) => {
                worker.refuse(RefusalReason::Engine, reason)?;
                MessageKind::WorkerHello
            }
            FirstMessage::Scheduler(scheduler) => {
                scheduler.refuse(RefusalReason::Engine, reason)?;
                MessageKind::SchedulerHello
            }
        };
        Err(ProtocolError::Unexpected { got, expected: "Hello" }.into())
    }
}

impl HandshakeHello {
    /// Sends model and memory. Waits only for space in the socket.
    pub fn send_setup(
        self,
        setup: &EngineSetup,
        shared: SharedMemory<'_>,
    ) -> Result<HandshakeSetup, LinkError> {
        setup.check()?;
        let own = own_pidfd()?;
        assert_eq!(shared.pool.is_some(), setup.device == Device::Host, "host memory alone is one file");
        let others = [shared.control.fd(), shared.tables.fd(), shared.lifetime_lock, own.as_fd()];
        let descriptors: Vec<_> = shared.pool.into_iter().chain(others).collect();
        self.sender.send(&Message::Model(Box::new(setup.clone())), &descriptors)?;
        let HandshakeHello { sender, receiver, hello } = self;
        Ok(HandshakeSetup { sender, receiver, hello })
    }
}

impl HandshakeSetup {
    /// Waits until the engine has reserved its ranges for `setup`. Takes up to [`HANDSHAKE_TIMEOUT`].
    pub fn recv_ready(mut self, setup: &EngineSetup) -> Result<EngineLink, LinkError> {
        let (ready, mut descriptors) = match self.receiver.recv_within(HANDSHAKE_TIMEOUT)? {
            (Message::Ready(ready), descriptors) => (ready, descriptors),
            (other, _) => return Err(LinkError::unexpected(&other, "Ready")),
        };
        let ours = setup.layout().digest();
        if ready.slab_digest != ours {
            return Err(LinkError::Digest { ours, theirs: ready.slab_digest });
        }
        let carried = "a Ready without its descriptors is refused on receipt";
        let supervisor = PeerProcess::new(descriptors.pop().expect(carried));
        let process = PeerProcess::new(descriptors.pop().expect(carried));
        let owed = Arc::new(Mutex::new(ExpectedReplies::new(setup)));
        let traffic = Arc::new(MessageCounters::default());
        Ok(EngineLink {
            hello: EngineHello { activation: ready.activation, pid: self.hello.pid },
            build: self.hello.build,
            sender: EngineSender {
                commands: CommandSender::new(self.sender, traffic.clone()),
                expected: owed.clone(),
            },
            receiver: EngineReceiver { receiver: self.receiver, expected: owed, counters: traffic },
            process,
            supervisor,
        })
    }
}

/// Sends commands to an engine. Clones share the socket; the owner keeps the commands in order.
#[derive(Clone, Debug)]
pub struct EngineSender {
    commands: CommandSender,
    expected: Arc<Mutex<ExpectedReplies>>,
}

impl EngineSender {
    /// Writes the step's state into the tables and sends the step. At most one step is in flight.
    pub fn send_step(&self, step: &Step, tables: &mut TableWriter) -> Result<(), LinkError> {
        let parity = tables.write(step)?;
        self.expected().expect_step(step);
        self.commands.send(&Message::Step(step_order(step, parity)))
    }

    /// Sends changes of mappings: one command of any length, applied completely or not at all, with one reply.
    pub fn send_remap(&self, id: ActionId, ops: &[MapOp]) -> Result<(), LinkError> {
        self.commands.send_remap(id, ops, || self.expected().expect_change(id))
    }

    /// Sends chunks of a GPU, each with its descriptor. The engine imports them and does not reply.
    pub fn send_chunks(&self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), LinkError> {
        self.commands.send_chunks(chunks)
    }

    /// Asks the engine to release its imports of `chunks`: one command of any length, with one reply.
    pub fn send_release(&self, id: ActionId, chunks: &[ChunkId]) -> Result<(), LinkError> {
        self.commands.send_release(id, chunks, || self.expected().expect_change(id))
    }

    /// Returns the messages of this link since its handshake, in both directions.
    pub fn messages(&self) -> u64 {
        self.commands.messages()
    }

    fn expected(&self) -> MutexGuard<'_, ExpectedReplies> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the engine to exit for good.
    pub fn send_bye(&self) -> Result<(), LinkError> {
        self.commands.send(&Message::Bye)
    }

    /// Cuts the link: the engine exits, and the receiver's thread wakes with [`LinkError::Closed`].
    pub fn shutdown(&self) {
        self.commands.shutdown();
    }
}

/// Returns the wire form of a step; its tokens and updates are in the tables.
pub fn step_order(step: &Step, parity: u8) -> StepOrder {
    let sequence = |sequence: &sluice_ports::compute::SequenceStep| SequenceOrder {
        row: sequence.row,
        start: sequence.start,
        count: u32::try_from(sequence.tokens.len()).expect("the tables hold fewer than 2^32 tokens"),
        sample: sequence.sample.clone(),
    };
    StepOrder {
        id: step.id,
        attempt: step.attempt,
        epoch: step.epoch,
        parity,
        sequences: step.sequences.iter().map(sequence).collect(),
        generations: step.generations.clone(),
        kv_generations: step.kv_generations.clone(),
        activation_limit_bytes: step.activation_limit_bytes,
    }
}

/// A reply of an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// All changes of a `Remap` or `Release` are made.
    Applied {
        /// The command.
        id: ActionId,
    },
    /// A `Remap` or `Release` was refused; nothing changed.
    Refused {
        /// The command.
        id: ActionId,
        /// The reason.
        message: String,
    },
    /// A step has finished.
    Done(StepDone),
    /// A step was refused; see [`Message::StepRefused`].
    StepRefused {
        /// The step.
        id: StepId,
        /// Its attempt.
        attempt: u32,
        /// The reason.
        message: String,
    },
    /// A step stopped before its end, because another time slice is in force; see [`Message::StaleEpoch`].
    StaleEpoch {
        /// The step.
        id: StepId,
        /// Its attempt.
        attempt: u32,
    },
    /// The engine exits by itself.
    Bye,
}

/// Receives replies from an engine.
#[derive(Debug)]
pub struct EngineReceiver {
    receiver: Receiver,
    expected: Arc<Mutex<ExpectedReplies>>,
    counters: Arc<MessageCounters>,
}

impl EngineReceiver {
    /// Returns the next reply. Blocks. After any error the engine counts as lost: confirm its exit first.
    pub fn recv(&mut self) -> Result<EngineEvent, LinkError> {
        let (message, _) = self.receiver.recv()?;
        self.event(message)
    }

    /// As [`EngineReceiver::recv`], but returns [`LinkError::Timeout`] if no message arrives within `limit`.
    pub fn recv_within(&mut self, limit: Duration) -> Result<EngineEvent, LinkError> {
        let (message, _) = self.receiver.recv_within(limit)?;
        self.event(message)
    }

    /// Refuses a reply that contradicts the commands sent.
    fn event(&self, message: Message) -> Result<EngineEvent, LinkError> {
        self.counters.on_received();
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).check_reply(&message)?;
        event(message)
    }
}

fn event(message: Message) -> Result<EngineEvent, LinkError> {
    match message {
        Message::Applied { id } => Ok(EngineEvent::Applied { id }),
        Message::Refused { id, message } => Ok(EngineEvent::Refused { id, message }),
        Message::Done(done) => Ok(EngineEvent::Done(done)),
        Message::StepRefused { id, attempt, message } => {
            Ok(EngineEvent::StepRefused { id, attempt, message })
        }
        Message::StaleEpoch { id, attempt } => Ok(EngineEvent::StaleEpoch { id, attempt }),
        Message::Bye => Ok(EngineEvent::Bye),
        other => Err(LinkError::unexpected(&other, "an answer")),
    }
}

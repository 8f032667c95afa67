//! The engine's end of the link: connect, handshake, then receive commands. [`worker`] and [`scheduler`] are the ends
//! of an engine that schedules by itself.

mod command_parts;
pub mod scheduler;
pub mod worker;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use sluice_policy::action::MapOp;
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{ActionId, ChunkId};
use sluice_ports::compute::StepDone;

use crate::control::ControlPage;
use crate::error::{LinkError, syscall_error};
use crate::frame::{MessageKind, ProtocolError};
use crate::message::{Device, EngineSetup, Hello, Message, Ready, StepOrder};
use crate::process_exit::own_pidfd;
use crate::region::check_sealed;
use crate::server::{HANDSHAKE_TIMEOUT, connect};
use crate::slab::reference_digest;
use crate::socket::{self, Receiver, SEND_TIMEOUT, Sender};
use crate::tables::{TableReader, TableShape};
use command_parts::{Joined, MemoryCommand, join};

/// How long an engine polls for its next command before it sleeps. The sidecar needs less time between two steps, and
/// waking a halted core takes tens of microseconds.
const BUSY_POLL_TIME: Duration = Duration::from_micros(100);

/// Setup and shared memory that the sidecar sent.
#[derive(Debug)]
pub struct EngineWelcome {
    /// Model and sizes of the tenant.
    pub setup: EngineSetup,
    /// The pool of chunks; `None` on a GPU.
    pub pool: Option<OwnedFd>,
    /// Generations of each layer's weights and KV.
    pub control: ControlPage,
    /// Block tables and token histories.
    pub tables: TableReader,
    /// Kept open until the engine exits: on a shared GPU, locks on it hold until both processes have exited.
    pub lifetime_lock: OwnedFd,
    /// A pidfd of the sidecar, with which the engine's supervisor ends a hung sidecar.
    pub sidecar: OwnedFd,
}

/// A command from the sidecar.
#[derive(Debug)]
pub enum EngineRequest {
    /// Import these chunks of a GPU. There is no reply.
    Chunks(Vec<(ChunkId, OwnedFd)>),
    /// Release the imports of these chunks, which are not mapped.
    Release {
        /// Identifies the reply.
        id: ActionId,
        /// The chunks.
        chunks: Vec<ChunkId>,
    },
    /// Change the chunks behind some addresses, in this order.
    Remap {
        /// Identifies the reply.
        id: ActionId,
        /// Changes.
        ops: Vec<MapOp>,
    },
    /// Run a step.
    Step(StepOrder),
    /// Exit.
    Bye,
}

/// A link to the sidecar.
#[derive(Debug)]
pub struct SidecarLink {
    sender: Sender,
    receiver: Receiver,
    supervisor: Option<Pid>,
}

impl SidecarLink {
    /// Connects to the sidecar's socket.
    pub fn connect(path: &Path) -> Result<SidecarLink, LinkError> {
        let (sender, receiver) = socket::split(connect(path)?, SEND_TIMEOUT)?;
        Ok(SidecarLink { sender, receiver, supervisor: None })
    }

    /// Sets the process that starts this engine's successor. The sidecar ends that process if no successor starts.
    pub fn set_supervisor(&mut self, supervisor: Pid) {
        self.supervisor = Some(supervisor);
    }

    /// Sends this engine's identity and receives the model and its memory.
    pub fn exchange_hello(&mut self, build: &str) -> Result<EngineWelcome, LinkError> {
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        let hello = Hello { build: build.to_owned(), pid, layout_digest: reference_digest() };
        self.sender.send(&Message::Hello(hello), &[])?;
        match self.receiver.recv_within(HANDSHAKE_TIMEOUT)? {
            (Message::Model(setup), descriptors) => parse_welcome(*setup, descriptors),
            (other, _) => Err(LinkError::unexpected(&other, "Model")),
        }
    }

    /// Reports that all ranges are reserved.
    pub fn send_ready(&self, slab_digest: u64, activation: ActivationCost) -> Result<(), LinkError> {
        let own = own_pidfd()?;
        let supervisor = self.supervisor.map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose();
        let supervisor = supervisor.map_err(syscall_error("pidfd_open"))?;
        let supervisor = supervisor.as_ref().unwrap_or(&own);
        let ready = Message::Ready(Ready { slab_digest, activation });
        self.sender.send(&ready, &[own.as_fd(), supervisor.as_fd()])
    }

    /// Returns the next complete command. A `Remap` or `Release` that spans several messages is one command. Blocks.
    pub fn recv(&mut self) -> Result<EngineRequest, LinkError> {
        self.busy_poll()?;
        let (message, descriptors) = self.receiver.recv()?;
        match join(&mut self.receiver, message, descriptors)? {
            Joined::Memory(MemoryCommand::Remap { id, ops }) => Ok(EngineRequest::Remap { id, ops }),
            Joined::Memory(MemoryCommand::Chunks(chunks)) => Ok(EngineRequest::Chunks(chunks)),
            Joined::Memory(MemoryCommand::Release { id, chunks }) => {
                Ok(EngineRequest::Release { id, chunks })
            }
            Joined::Other(Message::Step(order)) => Ok(EngineRequest::Step(order)),
            Joined::Other(Message::Bye) => Ok(EngineRequest::Bye),
            Joined::Other(other) => Err(LinkError::unexpected(&other, "an order")),
            Joined::Memory(MemoryCommand::Zero { .. }) => {
                Err(ProtocolError::Unexpected { got: MessageKind::Zero, expected: "an order" }.into())
            }
        }
    }

    /// Polls for a command without sleeping, for at most [`BUSY_POLL_TIME`].
    fn busy_poll(&self) -> Result<(), LinkError> {
        let begun = Instant::now();
        while begun.elapsed() < BUSY_POLL_TIME && !socket::wait_readable(self.sender.fd(), Duration::ZERO)? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// As [`SidecarLink::recv`], but fails after `limit`; for tests of a peer that sends nothing.
    pub fn recv_within(&mut self, limit: Duration) -> Result<EngineRequest, LinkError> {
        if !socket::wait_readable(self.sender.fd(), limit)? {
            return Err(LinkError::Timeout(limit));
        }
        self.recv()
    }

    /// Reports that all changes of a `Remap` or `Release` are made.
    pub fn send_applied(&self, id: ActionId) -> Result<(), LinkError> {
        self.sender.send(&Message::Applied { id }, &[])
    }

    /// Reports that a `Remap` or `Release` was refused and nothing changed.
    pub fn send_refused(&self, id: ActionId, message: String) -> Result<(), LinkError> {
        self.sender.send(&Message::Refused { id, message }, &[])
    }

    /// Reports that a step has finished.
    pub fn send_done(&self, done: StepDone) -> Result<(), LinkError> {
        self.sender.send(&Message::Done(done), &[])
    }

    /// Reports that a step did not run to its end; it has sampled nothing. A step that is refused before its first
    /// layer has written nothing. A step that is refused because a layer's slot was overwritten while it waited
    /// ([`WaitResult::Overtaken`](crate::control::WaitResult::Overtaken)) has written KV of the earlier layers at its
    /// own positions and published `done` for them.
    pub fn send_step_refused(&self, order: &StepOrder, message: String) -> Result<(), LinkError> {
        self.sender.send(&Message::StepRefused { id: order.id, attempt: order.attempt, message }, &[])
    }

    /// Reports that a step stopped before its end because another time slice is in force. It has sampled nothing.
    pub fn send_stale_epoch(&self, order: &StepOrder) -> Result<(), LinkError> {
        self.sender.send(&Message::StaleEpoch { id: order.id, attempt: order.attempt }, &[])
    }

    /// Reports that this engine exits by itself.
    pub fn send_bye(&self) -> Result<(), LinkError> {
        self.sender.send(&Message::Bye, &[])
    }

    /// Returns the socket, which becomes readable when the sidecar exits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sender.fd()
    }
}

fn parse_welcome(setup: EngineSetup, mut descriptors: Vec<OwnedFd>) -> Result<EngineWelcome, LinkError> {
    let got = descriptors.len();
    let pool = (setup.device == Device::Host && got > 0).then(|| descriptors.remove(0));
    let expected = Message::Model(Box::new(setup.clone())).descriptors();
    let [control, tables, life, sidecar]: [OwnedFd; 4] = descriptors
        .try_into()
        .map_err(|_| ProtocolError::Descriptors { kind: MessageKind::Model, got, expected })?;
    if let Some(pool) = &pool {
        check_sealed(pool.as_fd(), u64::from(setup.capacity_chunks) * setup.chunk_bytes)?;
    }
    let control = ControlPage::open(control, setup.spec.layers)?;
    let tables = TableReader::open(tables, TableShape::of(&setup))?;
    Ok(EngineWelcome { setup, pool, control, tables, lifetime_lock: life, sidecar })
}

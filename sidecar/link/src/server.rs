//! The sidecar's end: the listener, the handshake, and both halves of the link to one engine.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use sluice_policy::action::MapOp;
use sluice_policy::ids::{ActionId, ChunkId, StepId};
use sluice_ports::compute::{EngineHello, Step, StepDone};

use crate::control::ControlPage;
use crate::error::{LinkError, syscall_error};
use crate::expected_replies::ExpectedReplies;
use crate::frame::ProtocolError;
use crate::message::{CHUNKS_PER_MESSAGE, Device, EngineSetup, Hello, Message, SequenceOrder, StepOrder};
use crate::message_counters::MessageCounters;
use crate::process_exit::{PeerProcess, own_pidfd};
use crate::slab::reference_digest;
use crate::socket::{self, Receiver, SEND_TIMEOUT, Sender, wait_readable};
use crate::tables::TableWriter;

/// Longest wait for each reply of the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most changes in one `Remap` or `Release` message. A longer command is sent in several messages, which the engine joins first.
pub const REMAP_OPS: usize = 8192;
/// Most changes of one command: several per chunk of the largest pool.
pub const MAX_REMAP_OPS: usize = 1 << 24;

/// A socket that engines connect to. Its path is removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, for this user only. Replaces a socket file without a listener.
    pub fn bind(path: &Path) -> Result<Listener, LinkError> {
        let named = |source: io::Error| LinkError::Path { path: path.to_owned(), source };
        remove_stale(path).map_err(named)?;
        let socket = seqpacket()?;
        let address = SocketAddrUnix::new(path).map_err(|error| named(error.into()))?;
        bind(&socket, &address).map_err(|error| named(error.into()))?;
        let listener = Listener { socket, path: path.to_owned() };
        chmod(path, Mode::RUSR | Mode::WUSR).map_err(|error| named(error.into()))?;
        listen(&listener.socket, 1).map_err(syscall_error("listen"))?;
        Ok(listener)
    }

    /// Returns the next engine; `None` if no engine connects within `limit`. Refuses processes of other users.
    pub fn accept(&self, limit: Duration) -> Result<Option<Connection>, LinkError> {
        if !wait_readable(self.socket.as_fd(), limit)? {
            return Ok(None);
        }
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC).map_err(syscall_error("accept4"))?;
        let (theirs, ours) = (credentials(&socket)?, rustix::process::geteuid().as_raw());
        if theirs.uid != ours {
            return Err(LinkError::ForeignUser { ours, theirs: theirs.uid });
        }
        if theirs.pid == 0 {
            return Err(LinkError::PeerPidUnknown);
        }
        let (sender, receiver) = socket::split(socket, SEND_TIMEOUT)?;
        Ok(Some(Connection { sender, receiver }))
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // There is no caller to report an error to; the next listener replaces a leftover path.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the peer's credentials. `rustix` cannot represent the pid 0 of a process outside of this pid namespace.
fn credentials(socket: &OwnedFd) -> Result<libc::ucred, LinkError> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    let (to, level, name) = ((&raw mut found).cast(), libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `to` points to `bytes` writable bytes of a plain struct that outlives the call; the kernel writes at most
    // these.
    let refused = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut bytes) } != 0;
    if refused {
        let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        return Err(syscall_error("getsockopt(SO_PEERCRED)")(errno));
    }
    Ok(found)
}

fn seqpacket() -> Result<OwnedFd, LinkError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(syscall_error("socket"))
}

/// Connects to `path` as an engine.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, LinkError> {
    let named = |source: io::Error| LinkError::Path { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(|error| named(error.into()))?;
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &address).map_err(|error| named(error.into()))?;
    Ok(socket)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket"))
        }
        Ok(_) if connect(path).is_ok() => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it"))
        }
        Ok(_) => std::fs::remove_file(path),
    }
}

/// A connected process that has not sent its `Hello`.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
}

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

impl Connection {
    /// Receives the engine's `Hello`. Takes up to [`HANDSHAKE_TIMEOUT`].
    pub fn recv_hello(mut self) -> Result<HandshakeHello, LinkError> {
        let hello = match self.receiver.recv_within(HANDSHAKE_TIMEOUT)? {
            (Message::Hello(hello), _) => hello,
            (other, _) => return Err(unexpected(&other, "Hello")),
        };
        let ours = reference_digest();
        if hello.layout_digest != ours {
            return Err(LinkError::Digest { ours, theirs: hello.layout_digest });
        }
        Ok(HandshakeHello { sender: self.sender, receiver: self.receiver, hello })
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
            (other, _) => return Err(unexpected(&other, "Ready")),
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
            sender: EngineSender { sender: self.sender, expected: owed.clone(), counters: traffic.clone() },
            receiver: EngineReceiver { receiver: self.receiver, expected: owed, counters: traffic },
            process,
            supervisor,
        })
    }
}

pub(crate) fn unexpected(got: &Message, expected: &'static str) -> LinkError {
    ProtocolError::Unexpected { got: got.kind(), expected }.into()
}

/// Sends commands to an engine. Clones share the socket; the owner keeps the commands in order.
#[derive(Clone, Debug)]
pub struct EngineSender {
    sender: Sender,
    expected: Arc<Mutex<ExpectedReplies>>,
    counters: Arc<MessageCounters>,
}

impl EngineSender {
    /// Writes the step's state into the tables and sends the step. At most one step is in flight.
    pub fn send_step(&self, step: &Step, tables: &mut TableWriter) -> Result<(), LinkError> {
        let parity = tables.write(step)?;
        self.expected().expect_step(step);
        self.send(&Message::Step(step_order(step, parity)))
    }

    /// Sends changes of mappings: one command of any length, applied completely or not at all, with one reply.
    pub fn send_remap(&self, id: ActionId, ops: &[MapOp]) -> Result<(), LinkError> {
        if ops.len() > MAX_REMAP_OPS {
            return Err(ProtocolError::Oversized { got: ops.len(), limit: MAX_REMAP_OPS }.into());
        }
        self.expected().expect_change(id);
        self.send_parts(ops, |ops, more| Message::Remap { id, ops, more })
    }

    /// Sends a command of any length in messages of at most [`REMAP_OPS`] items, at least one.
    fn send_parts<T: Clone>(
        &self,
        items: &[T],
        message: impl Fn(Vec<T>, bool) -> Message,
    ) -> Result<(), LinkError> {
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

    /// Sends chunks of a GPU, each with its descriptor. The engine imports them and does not reply.
    pub fn send_chunks(&self, chunks: &[(ChunkId, OwnedFd)]) -> Result<(), LinkError> {
        for batch in chunks.chunks(CHUNKS_PER_MESSAGE) {
            let message = Message::Chunks { chunks: batch.iter().map(|(chunk, _)| *chunk).collect() };
            let descriptors: Vec<_> = batch.iter().map(|(_, fd)| fd.as_fd()).collect();
            self.sender.send(&message, &descriptors)?;
            self.counters.on_sent();
        }
        Ok(())
    }

    /// Asks the engine to release its imports of `chunks`: one command of any length, with one reply.
    pub fn send_release(&self, id: ActionId, chunks: &[ChunkId]) -> Result<(), LinkError> {
        self.expected().expect_change(id);
        self.send_parts(chunks, |chunks, more| Message::Release { id, chunks, more })
    }

    fn send(&self, message: &Message) -> Result<(), LinkError> {
        self.sender.send(message, &[])?;
        self.counters.on_sent();
        Ok(())
    }

    /// Returns the messages of this link since its handshake, in both directions.
    pub fn messages(&self) -> u64 {
        self.counters.total()
    }

    fn expected(&self) -> MutexGuard<'_, ExpectedReplies> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the engine to exit for good.
    pub fn send_bye(&self) -> Result<(), LinkError> {
        self.send(&Message::Bye)
    }

    /// Cuts the link: the engine exits, and the receiver's thread wakes with [`LinkError::Closed`].
    pub fn shutdown(&self) {
        self.sender.shutdown();
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
        other => Err(unexpected(&other, "an answer")),
    }
}

//! Tests of both ends over real sockets, and of peers that violate the protocol.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::*;
use sluice_link::client::{EngineRequest, EngineWelcome, SidecarLink};
use sluice_link::control::ControlPage;
use sluice_link::error::LinkError;
use sluice_link::frame::{Header, MAX_PACKET_BYTES, MessageKind, ProtocolError};
use sluice_link::hang::WatchedProcess;
use sluice_link::message::{CHUNKS_PER_MESSAGE, Device, EngineSetup, Hello, Message};
use sluice_link::server::{EngineEvent, EngineLink, Listener, SharedMemory};
use sluice_link::slab::reference_digest;
use sluice_link::tables::{TableShape, TableWriter};
use sluice_link::vocabulary::*;
use sluice_ports::compute::{SequenceStep, Step, TableUpdate};

use crate::messages::packets;
use crate::strategies::small_setup;

pub const TIMEOUT: Duration = Duration::from_secs(5);

pub struct Sidecar {
    _folder: tempfile::TempDir,
    path: PathBuf,
    listener: Listener,
    pool: OwnedFd,
    control: ControlPage,
    pub tables: TableWriter,
}

fn pool(chunks: u64) -> OwnedFd {
    use rustix::fs::*;
    let fd = memfd_create("pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, chunks * 65_536).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}

impl Sidecar {
    fn new() -> Sidecar {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.sock");
        Sidecar {
            listener: Listener::bind(&path).unwrap(),
            path,
            _folder: folder,
            pool: pool(16),
            control: ControlPage::create(3).unwrap(),
            tables: TableWriter::create(TableShape::of(&small_setup())).unwrap(),
        }
    }

    fn attach(&self) -> Result<EngineLink, LinkError> {
        self.attach_with(&small_setup())
    }

    fn attach_with(&self, setup: &EngineSetup) -> Result<EngineLink, LinkError> {
        let connection = self.listener.accept(TIMEOUT)?.expect("an engine connected");
        let shared = SharedMemory {
            pool: (setup.device == Device::Host).then(|| self.pool.as_fd()),
            control: &self.control,
            tables: &self.tables,
            lifetime_lock: self.pool.as_fd(),
        };
        connection.recv_hello()?.send_setup(setup, shared)?.recv_ready(setup)
    }
}

fn recv_remap(client: &mut SidecarLink) -> (ActionId, Vec<MapOp>) {
    match client.recv().unwrap() {
        EngineRequest::Remap { id, ops } => (id, ops),
        other => panic!("{other:?} where a change of mappings was sent"),
    }
}

fn engine(path: &std::path::Path, digest: Option<u64>) -> Result<(SidecarLink, EngineWelcome), LinkError> {
    let mut link = SidecarLink::connect(path)?;
    let welcome = link.exchange_hello("test")?;
    let digest = digest.unwrap_or_else(|| welcome.setup.layout().digest());
    link.send_ready(digest, ActivationCost { fixed_bytes: 1, ..ActivationCost::default() })?;
    Ok((link, welcome))
}

/// Returns both ends after the handshake.
pub fn attached() -> (Sidecar, EngineLink, SidecarLink, EngineWelcome) {
    let sidecar = Sidecar::new();
    let path = sidecar.path.clone();
    let other = std::thread::spawn(move || engine(&path, None).unwrap());
    let link = sidecar.attach().unwrap();
    let (client, welcome) = other.join().unwrap();
    (sidecar, link, client, welcome)
}

#[test]
fn both_ends_agree_and_exchange_orders_and_answers() {
    let (mut sidecar, mut link, mut client, welcome) = attached();
    assert_eq!(link.hello.pid, std::process::id());
    assert_eq!(welcome.setup, small_setup());
    let ops = vec![MapOp::Map(Address::Global(0), ChunkId(3))];
    link.sender.send_remap(ActionId(5), &ops).unwrap();
    assert_eq!(recv_remap(&mut client), (ActionId(5), ops));
    client.send_applied(ActionId(5)).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), EngineEvent::Applied { id: ActionId(5) });

    let layer_blocks = vec![LayerBlockId(1), LayerBlockId(2), LayerBlockId(3)];
    let step = Step {
        id: StepId(9),
        attempt: 2,
        epoch: 0,
        sequences: vec![SequenceStep { row: RowId(1), start: 0, tokens: vec![4, 5, 6], sample: None }],
        updates: vec![TableUpdate::KvBlock { row: RowId(1), kv_block: 0, layer_blocks }],
        generations: vec![(LayerId(2), Generation(11))],
        kv_generations: vec![(LayerId(1), Generation(12))],
        activation_limit_bytes: 77,
    };
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    let EngineRequest::Step(order) = client.recv().unwrap() else { panic!("a step was sent") };
    assert_eq!((&order.generations, &order.kv_generations), (&step.generations, &step.kv_generations));
    let (mut tokens, mut layer_blocks) = (Vec::new(), Vec::new());
    let sequence = &order.sequences[0];
    welcome.tables.history(order.parity, sequence.row, 0, sequence.count, &mut tokens).unwrap();
    welcome.tables.layer_blocks(order.parity, sequence.row, 1, &mut layer_blocks).unwrap();
    assert_eq!((tokens, layer_blocks), (vec![4, 5, 6], vec![1, 2, 3]));
    client.send_step_refused(&order, "no".to_owned()).unwrap();
    let refused = EngineEvent::StepRefused { id: StepId(9), attempt: 2, message: "no".to_owned() };
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), refused);
    let again = Step { id: StepId(10), updates: Vec::new(), ..step };
    link.sender.send_step(&again, &mut sidecar.tables).unwrap();
    let EngineRequest::Step(order) = client.recv().unwrap() else { panic!("a step was sent") };
    client.send_stale_epoch(&order).unwrap();
    let passed = EngineEvent::StaleEpoch { id: StepId(10), attempt: 2 };
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), passed);
    assert_eq!(link.sender.messages(), 6, "three orders and three answers, the handshake apart");
    link.sender.send_bye().unwrap();
    assert!(matches!(client.recv().unwrap(), EngineRequest::Bye));
    assert_eq!(link.sender.clone().messages(), 7);
}

#[test]
fn pidfds_of_peer_and_supervisor_are_exchanged() {
    let sidecar = Sidecar::new();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (path, pid) = (sidecar.path.clone(), rustix::process::Pid::from_child(&child));
    let other = std::thread::spawn(move || {
        let mut link = SidecarLink::connect(&path).unwrap();
        link.set_supervisor(pid);
        let welcome = link.exchange_hello("test").unwrap();
        link.send_ready(welcome.setup.layout().digest(), ActivationCost::default()).unwrap();
        welcome
    });
    let link = sidecar.attach().unwrap();
    let welcome = other.join().unwrap();
    let own = WatchedProcess::new(welcome.sidecar.as_fd());
    assert!(own.has_pid(std::process::id()), "the engine sees its sidecar: {own:?}");
    assert!(WatchedProcess::new(link.process.pidfd()).has_pid(std::process::id()));
    assert!(WatchedProcess::new(link.supervisor.pidfd()).has_pid(child.id()));
    link.supervisor.kill().unwrap();
    child.wait().unwrap();
    link.supervisor.kill().expect("one that is dead already is no error");
}

#[test]
fn long_mapping_has_one_answer() {
    let (_sidecar, mut link, mut client, _welcome) = attached();
    let ops: Vec<_> = (0..20_000).map(|at| MapOp::Map(Address::Kv(KvChunkId(at)), ChunkId(at))).collect();
    let (sent, sender) = (ops.clone(), link.sender.clone());
    let sending = std::thread::spawn(move || sender.send_remap(ActionId(1), &sent).unwrap());
    assert_eq!(recv_remap(&mut client), (ActionId(1), ops), "whole, before anything is made");
    client.send_refused(ActionId(1), "no".to_owned()).unwrap();
    let refused = EngineEvent::Refused { id: ActionId(1), message: "no".to_owned() };
    sending.join().unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), refused);
}

#[test]
fn incomplete_or_mixed_remap_is_refused() {
    let begun = |id, more| {
        let ops = vec![MapOp::Map(Address::Global(0), ChunkId(0))];
        packets(&Message::Remap { id: ActionId(id), ops, more }).remove(0)
    };
    let sidecar = Sidecar::new();
    for next in [packets(&Message::Bye).remove(0), begun(2, false), begun(2, true)] {
        let mut client = SidecarLink::connect(&sidecar.path).unwrap();
        let socket = accept_with(sidecar.listener.as_fd(), SocketFlags::CLOEXEC).unwrap();
        send(&socket, &begun(1, true), SendFlags::NOSIGNAL).unwrap();
        send(&socket, &next, SendFlags::NOSIGNAL).unwrap();
        let refused = refusal(client.recv().unwrap_err());
        assert!(matches!(refused, ProtocolError::Unexpected { .. }), "{refused}");
    }
}

#[test]
fn chunks_of_a_gpu_arrive_with_their_descriptors_and_are_released() {
    let sidecar = Sidecar::new();
    let setup = EngineSetup { device: Device::Cuda { uuid: [7; 16] }, chunk_bytes: 2 << 20, ..small_setup() };
    let path = sidecar.path.clone();
    let other = std::thread::spawn(move || engine(&path, None).unwrap());
    let mut link = sidecar.attach_with(&setup).unwrap();
    let (mut client, welcome) = other.join().unwrap();
    assert!(welcome.pool.is_none() && welcome.setup == setup);

    let ids: Vec<_> = (0..CHUNKS_PER_MESSAGE as u32 + 5).map(|chunk| ChunkId(3 * chunk)).collect();
    let sent: Vec<_> = ids.iter().map(|chunk| (*chunk, pool(1))).collect();
    link.sender.send_chunks(&sent).unwrap();
    let mut received = Vec::new();
    for expected in [CHUNKS_PER_MESSAGE, 5] {
        let EngineRequest::Chunks(chunks) = client.recv().unwrap() else { panic!("chunks were sent") };
        assert_eq!(chunks.len(), expected);
        received.extend(chunks);
    }
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    let files =
        |chunks: &[(ChunkId, OwnedFd)]| chunks.iter().map(|(c, fd)| (*c, inode(fd))).collect::<Vec<_>>();
    assert_eq!(files(&received), files(&sent), "each descriptor with its own chunk");

    let ids: Vec<_> = (0..20_000).map(ChunkId).collect();
    let (sender, all) = (link.sender.clone(), ids.clone());
    let sending = std::thread::spawn(move || sender.send_release(ActionId(8), &all).unwrap());
    let EngineRequest::Release { id, chunks } = client.recv().unwrap() else { panic!("a release was sent") };
    sending.join().unwrap();
    assert!((id, &chunks) == (ActionId(8), &ids), "one command, however long");
    client.send_applied(id).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), EngineEvent::Applied { id });
    client.send_applied(id).unwrap();
    let twice = refusal(link.receiver.recv_within(TIMEOUT).unwrap_err());
    assert!(matches!(twice, ProtocolError::Contradiction { .. }), "{twice}");
}

#[test]
fn closed_end_is_detected_by_peer() {
    let (_sidecar, mut link, client, _welcome) = attached();
    drop(client);
    assert!(matches!(link.receiver.recv_within(TIMEOUT), Err(LinkError::Closed)));
    let (_sidecar, link, mut client, _welcome) = attached();
    link.sender.shutdown();
    assert!(matches!(client.recv(), Err(LinkError::Closed)));
}

#[test]
fn an_engine_with_another_slab_layout_is_refused() {
    let sidecar = Sidecar::new();
    let path = sidecar.path.clone();
    let other = std::thread::spawn(move || engine(&path, Some(1)));
    assert!(matches!(sidecar.attach(), Err(LinkError::Digest { theirs: 1, .. })));
    drop(other.join().unwrap());
}

/// Sends raw packets with `fds` as an engine and returns the sidecar's error.
fn raw(first: &[u8], fds: usize) -> LinkError {
    let sidecar = Sidecar::new();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(&sidecar.path).unwrap()).unwrap();
    let spare = pool(1);
    let borrowed = vec![spare.as_fd(); fds];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if fds > 0 {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    sendmsg(&socket, &[std::io::IoSlice::new(first)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    shutdown(&socket, Shutdown::Write).unwrap();
    sidecar.attach().expect_err("refused")
}

fn hello(layout_digest: u64) -> Vec<u8> {
    packets(&Message::Hello(Hello { build: "x".to_owned(), pid: 1, layout_digest })).remove(0)
}

pub fn refusal(error: LinkError) -> ProtocolError {
    match error {
        LinkError::Refused(refusal) => refusal,
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn protocol_violations_are_refused() {
    let mut other_version = hello(reference_digest());
    other_version[4] = 9;
    assert_eq!(refusal(raw(&other_version, 0)), ProtocolError::Version { theirs: 9 });
    assert!(matches!(raw(&hello(1), 0), LinkError::Digest { theirs: 1, .. }));
    let descriptors = refusal(raw(&hello(reference_digest()), 1));
    assert_eq!(descriptors, ProtocolError::Descriptors { kind: MessageKind::Hello, got: 1, expected: 0 });
    assert!(matches!(refusal(raw(&hello(reference_digest()), 60)), ProtocolError::Descriptors { .. }));
    assert!(matches!(refusal(raw(&vec![1; MAX_PACKET_BYTES + 100], 0)), ProtocolError::Oversized { .. }));
    assert!(matches!(refusal(raw(&[1, 2, 3], 0)), ProtocolError::Short { got: 3 }));
    let early = packets(&Message::Bye).remove(0);
    assert!(matches!(refusal(raw(&early, 0)), ProtocolError::Unexpected { got: MessageKind::Bye, .. }));
    // A valid Hello, then the end of the stream instead of a Ready.
    assert!(matches!(raw(&hello(reference_digest()), 0), LinkError::Closed));
    let open = Header { kind: MessageKind::Hello, part: 0, parts: 2, length: 0 }.encode();
    assert!(matches!(raw(&open, 0), LinkError::Closed));
}

#[test]
fn setup_without_descriptors_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let listener = Listener::bind(&path).unwrap();
    for fds in 0..6 {
        let client = std::thread::spawn({
            let path = path.clone();
            move || engine(&path, None).map(|_| ())
        });
        assert!(sluice_link::socket::wait_readable(listener.as_fd(), TIMEOUT).unwrap());
        let socket = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        let spare = pool(1);
        let borrowed = vec![spare.as_fd(); fds];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if fds > 0 {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
        }
        let packet = packets(&Message::Model(Box::new(small_setup()))).remove(0);
        sendmsg(&socket, &[std::io::IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        let error = client.join().unwrap().expect_err("refused");
        match fds {
            // The right number of descriptors, but the pool is too small for the capacity.
            5 => assert!(matches!(error, LinkError::Region(_)), "{error:?}"),
            got => assert_eq!(
                refusal(error),
                ProtocolError::Descriptors { kind: MessageKind::Model, got, expected: 5 }
            ),
        }
    }
}

#[test]
fn socket_is_private_and_removed_on_drop() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Listener::bind(&path), Err(LinkError::Path { .. })), "a live socket is not stolen");
    assert!(listener.accept(Duration::ZERO).unwrap().is_some(), "the probe connected and left");
    // As after a kill: the socket file exists without a listener.
    std::mem::forget(std::fs::hard_link(&path, folder.path().join("kept")));
    drop(listener);
    assert!(!path.exists());
    std::fs::rename(folder.path().join("kept"), &path).unwrap();
    let again = Listener::bind(&path).unwrap();
    drop(again);
    std::fs::write(&path, "no socket").unwrap();
    assert!(matches!(Listener::bind(&path), Err(LinkError::Path { .. })), "a file is not removed");
}

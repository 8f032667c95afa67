//! Tests of the worker's link over real sockets, and of peers that violate its protocol.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::net::SendFlags;
use sluice_link::client::worker::{WorkerClient, WorkerIdentity, WorkerRequest, WorkerWelcome};
use sluice_link::control::{ControlPage, PassRecord};
use sluice_link::error::LinkError;
use sluice_link::frame::{MessageKind, ProtocolError};
use sluice_link::message::*;
use sluice_link::server::worker::{WorkerEvent, WorkerLink, WorkerMemory};
use sluice_link::server::{FirstMessage, Listener};
use sluice_link::vocabulary::*;

use crate::handshake::{TIMEOUT, refusal};
use crate::messages::packets;

const CHUNK: u64 = 65_536;

pub struct Sidecar {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
    pub listener: Listener,
    pool: OwnedFd,
    control: ControlPage,
}

fn file(chunks: u64) -> OwnedFd {
    let fd = memfd_create("pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, chunks * CHUNK).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}

fn setup() -> WorkerSetup {
    WorkerSetup {
        device: Device::Host,
        chunk_bytes: CHUNK,
        capacity_chunks: 16,
        layer_chunks: vec![2, 2, 3],
        kv_chunks: 32,
    }
}

fn identity(rank: u32, ranks: u32) -> WorkerIdentity {
    WorkerIdentity { build: "test".to_owned(), engine: "vllm 0.32.0".to_owned(), rank, ranks }
}

impl Sidecar {
    pub fn new() -> Sidecar {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.sock");
        let listener = Listener::bind(&path).unwrap();
        let control = ControlPage::create_with_passes(3).unwrap();
        Sidecar { _folder: folder, path, listener, pool: file(16), control }
    }

    pub fn first(&self) -> Result<FirstMessage, LinkError> {
        self.listener.accept(TIMEOUT)?.expect("an engine connected").recv_first()
    }

    fn attach(&self, setup: &WorkerSetup) -> Result<WorkerLink, LinkError> {
        let FirstMessage::Worker(worker) = self.first()? else { panic!("a worker connected") };
        let pool = (setup.device == Device::Host).then(|| self.pool.as_fd());
        worker.send_setup(
            setup,
            WorkerMemory { pool, control: &self.control, lifetime_lock: self.pool.as_fd() },
        )
    }
}

type Connected = Result<(WorkerClient, WorkerWelcome), LinkError>;

fn connecting(sidecar: &Sidecar, rank: u32, ranks: u32) -> std::thread::JoinHandle<Connected> {
    let path = sidecar.path.clone();
    std::thread::spawn(move || WorkerClient::connect(&path, identity(rank, ranks), TIMEOUT))
}

fn attached() -> (Sidecar, WorkerLink, WorkerClient, WorkerWelcome) {
    let sidecar = Sidecar::new();
    let other = connecting(&sidecar, 0, 1);
    let link = sidecar.attach(&setup()).unwrap();
    let (client, welcome) = other.join().unwrap().unwrap();
    (sidecar, link, client, welcome)
}

fn layout() -> KvLayout {
    KvLayout {
        layers: 2,
        blocks: 16,
        block_bytes: CHUNK,
        layer_stride_bytes: 16 * CHUNK,
        block_stride_bytes: CHUNK,
        block_tokens: 16,
    }
}

#[test]
fn a_worker_starts_and_its_memory_changes() {
    let (sidecar, mut link, mut client, welcome) = attached();
    assert_eq!((link.hello.pid, link.hello.engine.as_str()), (std::process::id(), "vllm 0.32.0"));
    assert!(!link.process.wait_exit(Duration::ZERO).unwrap(), "its pidfd is that of a process that runs");
    assert_eq!(welcome.setup, setup());
    let inode = |fd: &OwnedFd| fstat(fd).unwrap().st_ino;
    assert_eq!(inode(&welcome.pool.unwrap()), inode(&sidecar.pool));

    let ops = vec![MapOp::Map(Address::Layer(LayerId(2), 0), ChunkId(3))];
    link.sender.send_remap(ActionId(1), &ops).unwrap();
    let WorkerRequest::Remap { id, ops: got } = client.receiver.recv_within(TIMEOUT).unwrap() else {
        panic!("a remap was sent")
    };
    assert_eq!((id, got), (ActionId(1), ops));
    client.sender.send_applied(id).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), WorkerEvent::Applied { id: ActionId(1) });

    let loaded = Loaded { layer_bytes: vec![1, 2 * CHUNK, 0] };
    client.sender.send_loaded(loaded.clone()).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), WorkerEvent::Loaded(loaded));
    link.sender.send_captured().unwrap();
    assert!(matches!(client.receiver.recv_within(TIMEOUT).unwrap(), WorkerRequest::Captured));

    client.sender.send_kv_layout(layout()).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), WorkerEvent::KvLayout(layout()));
    let extents = layout().extents(CHUNK, 32).unwrap();
    link.sender.send_kv_accepted(extents).unwrap();
    match client.receiver.recv_within(TIMEOUT).unwrap() {
        WorkerRequest::KvAccepted(got) => assert_eq!(got, extents),
        other => panic!("{other:?} where extents were sent"),
    }

    let moving = Moving { id: ActionId(3), layers: vec![LayerId(0), LayerId(1)], first_pass: 9 };
    link.sender.send_moving(moving.clone()).unwrap();
    match client.receiver.recv_within(TIMEOUT).unwrap() {
        WorkerRequest::Moving(got) => assert_eq!(got, moving),
        other => panic!("{other:?} where moving layers were sent"),
    }
    client.sender.send_refused(ActionId(3), "no".to_owned()).unwrap();
    let refused = WorkerEvent::Refused { id: ActionId(3), message: "no".to_owned() };
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), refused);

    let pass = welcome.control.begin_pass();
    welcome.control.end_pass(PassRecord { pass, tokens: 7, ..PassRecord::default() });
    assert_eq!(sidecar.control.pass_record(pass).map(|record| record.tokens), Some(7));
    assert_eq!(link.sender.messages(), 8, "the handshake apart");
    client.sender.send_bye().unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), WorkerEvent::Bye);
    link.sender.send_bye().unwrap();
    assert!(matches!(client.receiver.recv().unwrap(), WorkerRequest::Bye));
}

#[test]
fn a_command_of_any_length_is_one_command() {
    let (_sidecar, mut link, mut client, _welcome) = attached();
    let positions: Vec<_> = (0..20_000).map(KvChunkId).collect();
    let (sender, all) = (link.sender.clone(), positions.clone());
    let sending = std::thread::spawn(move || sender.send_zero(ActionId(8), &all).unwrap());
    let WorkerRequest::Zero { id, positions: got } = client.receiver.recv().unwrap() else {
        panic!("zeros were sent")
    };
    sending.join().unwrap();
    assert_eq!((id, got), (ActionId(8), positions));
    client.sender.send_applied(id).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), WorkerEvent::Applied { id });
}

#[test]
fn chunks_of_a_gpu_reach_a_worker_with_their_descriptors() {
    let sidecar = Sidecar::new();
    let setup = WorkerSetup { device: Device::Cuda { uuid: [7; 16] }, ..setup() };
    let other = connecting(&sidecar, 0, 1);
    let link = sidecar.attach(&setup).unwrap();
    let (mut client, welcome) = other.join().unwrap().unwrap();
    assert!(welcome.pool.is_none() && welcome.setup == setup);
    link.sender.send_chunks(&[(ChunkId(5), file(1)), (ChunkId(9), file(1))]).unwrap();
    let WorkerRequest::Chunks(chunks) = client.receiver.recv().unwrap() else { panic!("chunks were sent") };
    assert_eq!(chunks.iter().map(|(chunk, _)| chunk.0).collect::<Vec<_>>(), [5, 9]);
    link.sender.send_release(ActionId(2), &[ChunkId(5)]).unwrap();
    let WorkerRequest::Release { id, chunks } = client.receiver.recv().unwrap() else {
        panic!("a release was sent")
    };
    assert_eq!((id, chunks), (ActionId(2), vec![ChunkId(5)]));
}

#[test]
fn only_rank_0_of_1_is_accepted_and_learns_why() {
    for (rank, ranks) in [(0, 2), (1, 2), (1, 1), (0, 0), (u32::MAX, u32::MAX)] {
        let sidecar = Sidecar::new();
        let other = connecting(&sidecar, rank, ranks);
        let error = sidecar.first().expect_err("refused");
        assert!(matches!(error, LinkError::Ranks { .. }), "{error:?}");
        match other.join().unwrap() {
            Err(LinkError::SetupRefused(refused)) => {
                assert_eq!(refused.reason, RefusalReason::Ranks);
                assert!(refused.message.contains(&format!("rank {rank} of {ranks}")), "{refused:?}");
            }
            other => panic!("{other:?} is no refusal"),
        }
    }
}

#[test]
fn refusals_of_a_sidecar_reach_the_worker() {
    let sidecar = Sidecar::new();
    let other = connecting(&sidecar, 0, 1);
    let FirstMessage::Worker(worker) = sidecar.first().unwrap() else { panic!("a worker connected") };
    assert_eq!(worker.hello().engine, "vllm 0.32.0");
    worker.refuse(RefusalReason::Occupied, "x".repeat(MAX_MESSAGE_BYTES + 9)).unwrap();
    let error = other.join().unwrap().expect_err("refused");
    assert!(error.to_string().starts_with("the sidecar refuses this engine (occupied): xxx"), "{error}");

    let (_sidecar, mut link, mut client, _welcome) = attached();
    client.sender.send_loaded(Loaded { layer_bytes: vec![0; 3] }).unwrap();
    client.sender.send_kv_layout(KvLayout { layers: 0, ..layout() }).unwrap();
    link.receiver.recv_within(TIMEOUT).unwrap();
    let WorkerEvent::KvLayout(asked) = link.receiver.recv_within(TIMEOUT).unwrap() else {
        panic!("a layout was sent")
    };
    link.sender.refuse_layout(asked.extents(CHUNK, 32).unwrap_err().to_string()).unwrap();
    match client.receiver.recv_within(TIMEOUT).unwrap() {
        WorkerRequest::SetupRefused(refused) => {
            assert_eq!(refused, SetupRefused::new(RefusalReason::Layout, "layers is zero"));
        }
        other => panic!("{other:?} is no refusal"),
    }
    assert!(matches!(client.receiver.recv(), Err(LinkError::Closed)), "and the link has ended");
}

#[test]
fn a_sidecar_with_an_engine_of_its_own_refuses_a_worker_with_a_reason() {
    let sidecar = Sidecar::new();
    let other = connecting(&sidecar, 0, 1);
    let refused = sidecar.listener.accept(TIMEOUT).unwrap().unwrap().recv_hello().expect_err("refused");
    let unexpected = ProtocolError::Unexpected { got: MessageKind::WorkerHello, expected: "Hello" };
    assert_eq!(refusal(refused), unexpected);
    let error = other.join().unwrap().expect_err("refused");
    assert!(error.to_string().contains("(engine)"), "{error}");
}

#[test]
fn setups_that_reserve_without_bound_are_not_sent() {
    let bad = [
        WorkerSetup { chunk_bytes: 3, ..setup() },
        WorkerSetup { layer_chunks: Vec::new(), ..setup() },
        WorkerSetup { layer_chunks: vec![1; MAX_LAYERS + 1], ..setup() },
        WorkerSetup { kv_chunks: u32::MAX, ..setup() },
    ];
    for setup in bad {
        let sidecar = Sidecar::new();
        let other = connecting(&sidecar, 0, 1);
        assert!(matches!(sidecar.attach(&setup), Err(LinkError::Setup(_))), "{setup:?}");
        assert!(matches!(other.join().unwrap(), Err(LinkError::Closed)));
    }
}

/// Sends messages as a worker that has received its memory, and returns the sidecar's error.
fn contradiction(messages: &[Message]) -> ProtocolError {
    let (_sidecar, mut link, client, _welcome) = attached();
    link.sender.send_remap(ActionId(5), &[]).unwrap();
    link.sender.send_zero(ActionId(6), &[]).unwrap();
    for message in messages {
        for packet in packets(message) {
            rustix::net::send(client.sender.fd(), &packet, SendFlags::NOSIGNAL).unwrap();
        }
    }
    for _ in 1..messages.len() {
        link.receiver.recv_within(TIMEOUT).expect("all but the last message fit");
    }
    refusal(link.receiver.recv_within(TIMEOUT).expect_err("the last message is refused"))
}

#[test]
fn messages_that_contradict_the_commands_are_refused() {
    let applied = |id| Message::Applied { id: ActionId(id) };
    let loaded = |layer_bytes: &[u64]| {
        Message::Worker(WorkerMessage::Loaded(Loaded { layer_bytes: layer_bytes.to_vec() }))
    };
    let layout = || Message::Worker(WorkerMessage::KvLayout(layout()));
    for messages in [
        vec![applied(6)],
        vec![applied(5), applied(5)],
        vec![applied(5), applied(6), applied(7)],
        vec![loaded(&[0, 0])],
        vec![loaded(&[0, 0, 3 * CHUNK + 1])],
        vec![loaded(&[0, 0, 0]), loaded(&[0, 0, 0])],
        vec![layout()],
        vec![loaded(&[0, 0, 0]), layout(), layout()],
    ] {
        let refused = contradiction(&messages);
        assert!(matches!(refused, ProtocolError::Contradiction { .. }), "{messages:?}: {refused}");
    }
    let held = Held { id: ActionId(5), idle: Vec::new(), wanted_blocks: 0, waiting: 0, running: 0 };
    let foreign = contradiction(&[Message::Scheduler(SchedulerMessage::Held(held))]);
    assert!(matches!(foreign, ProtocolError::Unexpected { .. }), "{foreign}");
}

#[test]
fn replies_that_a_worker_has_not_asked_for_are_refused() {
    let (_sidecar, link, mut client, _welcome) = attached();
    link.sender.send_captured().unwrap();
    let refused = refusal(client.receiver.recv_within(TIMEOUT).unwrap_err());
    assert!(matches!(refused, ProtocolError::Contradiction { kind: MessageKind::Captured, .. }), "{refused}");
    let (_sidecar, link, mut client, _welcome) = attached();
    link.sender.send_kv_accepted(KvExtents { extent_blocks: 1, extents: 1 }).unwrap();
    let refused = refusal(client.receiver.recv_within(TIMEOUT).unwrap_err());
    assert!(
        matches!(refused, ProtocolError::Contradiction { kind: MessageKind::KvAccepted, .. }),
        "{refused}"
    );
}

#[test]
fn a_setup_with_too_few_descriptors_or_a_small_pool_is_refused() {
    use rustix::net::*;
    for fds in 0..6 {
        let sidecar = Sidecar::new();
        let other = connecting(&sidecar, 0, 1);
        assert!(sluice_link::socket::wait_readable(sidecar.listener.as_fd(), TIMEOUT).unwrap());
        let socket = accept_with(&sidecar.listener, SocketFlags::CLOEXEC).unwrap();
        let small = file(1);
        let borrowed = vec![small.as_fd(); fds];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(fds == 0 || ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let packet = packets(&Message::Worker(WorkerMessage::Setup(setup()))).remove(0);
        sendmsg(&socket, &[std::io::IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        let error = other.join().unwrap().expect_err("refused");
        match fds {
            4 => assert!(matches!(error, LinkError::Region(_)), "{error:?}"),
            got => {
                let kind = MessageKind::WorkerSetup;
                assert_eq!(refusal(error), ProtocolError::Descriptors { kind, got, expected: 4 });
            }
        }
    }
}

#[test]
fn either_end_learns_that_the_other_has_closed() {
    let (_sidecar, mut link, client, _welcome) = attached();
    drop(client);
    assert!(matches!(link.receiver.recv_within(TIMEOUT), Err(LinkError::Closed)));
    let (_sidecar, link, mut client, _welcome) = attached();
    link.sender.shutdown();
    assert!(matches!(client.receiver.recv(), Err(LinkError::Closed)));
}

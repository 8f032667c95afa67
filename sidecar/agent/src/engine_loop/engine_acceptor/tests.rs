//! Tests of the acceptor with real sockets.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use rustix::net::{RecvFlags, SocketAddrUnix, recv};
use sluice_link::client::SidecarLink;
use sluice_link::message::{Device, Faults};
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};
use sluice_link::tables::TableShape;
use sluice_policy::geometry::ActivationCost;

use super::*;

/// Longest wait in these tests. It is shorter than the handshake timeout of a silent peer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the setup of a small tenant.
pub fn setup() -> EngineSetup {
    let spec = ModelSpec {
        family: Family::Llama,
        dtype: Dtype::F32,
        vocab: 64,
        hidden: 16,
        intermediate: 32,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        max_positions: 128,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: true,
        attention_bias: false,
        mlp_bias: false,
    };
    EngineSetup {
        spec,
        device: Device::Host,
        chunk_bytes: 65_536,
        capacity_chunks: 16,
        kv_chunks: 16,
        activation_chunks: 16,
        staging_chunks: 0,
        max_rows: 4,
        max_kv_blocks: 8,
        max_history: 128,
        chunk_tokens: 32,
        threads: 1,
        faults: Faults::default(),
    }
}

/// Acceptor on its own thread, closed when dropped.
struct TestAcceptor {
    socket: PathBuf,
    tables: Arc<Mutex<TableWriter>>,
    messages: Receiver<SchedulerMessage>,
    closed: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl TestAcceptor {
    fn open() -> TestAcceptor {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let setup = setup();
        let pool = rustix::fs::memfd_create("pool", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&pool, 16 * 65_536).unwrap();
        let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&pool, seals).unwrap();
        let tables = Arc::new(Mutex::new(TableWriter::create(TableShape::of(&setup)).unwrap()));
        let (inbox, messages) = MessageSender::new();
        let closed = Arc::new(AtomicBool::new(false));
        let door = EngineAcceptor {
            listener: Listener::bind(&socket).unwrap(),
            setup,
            pool: Some(pool),
            control: Arc::new(ControlPage::create(3).unwrap()),
            tables: tables.clone(),
            liveness: std::fs::File::open("/dev/null").unwrap().into(),
            inbox,
            closed: closed.clone(),
            lease: EngineLease::new(Duration::from_millis(300)),
        };
        std::thread::spawn(move || door.run());
        TestAcceptor { socket, tables, messages, closed, _folder: folder }
    }

    /// Connects an engine that is never dropped: when an engine disconnects, the acceptor kills its process, which here
    /// is the test process.
    fn connect_engine(&self) -> ManuallyDrop<SidecarLink> {
        ManuallyDrop::new(SidecarLink::connect(&self.socket).unwrap())
    }

    fn next_event(&self) -> EngineConnEvent {
        match self.messages.recv_timeout(TIMEOUT).expect("news in time") {
            SchedulerMessage::Engine(news) => *news,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for TestAcceptor {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// Connects and sends nothing.
fn connect_silent(path: &Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Whether the acceptor has not closed the connection of a silent peer.
fn is_connected(peer: &OwnedFd) -> bool {
    recv(peer, &mut [0; 1], RecvFlags::DONTWAIT).err() == Some(rustix::io::Errno::AGAIN)
}

fn ready(link: &SidecarLink) {
    link.send_ready(setup().layout().digest(), ActivationCost::default()).unwrap();
}

#[test]
fn silent_peer_does_not_block_engine() {
    let acceptor = TestAcceptor::open();
    let peer = connect_silent(&acceptor.socket);
    let mut engine = acceptor.connect_engine();
    drop(engine.exchange_hello("test").unwrap());
    ready(&engine);
    assert!(matches!(acceptor.next_event(), EngineConnEvent::Attached(_)));
    assert!(is_connected(&peer), "the engine came in while the other one was still waited for");
}

#[test]
fn slow_engine_does_not_hold_table_lock() {
    let acceptor = TestAcceptor::open();
    let mut engine = acceptor.connect_engine();
    drop(engine.exchange_hello("test").unwrap());
    // The engine has received everything and has not answered. The lock must be free now.
    let begun = std::time::Instant::now();
    while acceptor.tables.try_lock().is_err() {
        assert!(begun.elapsed() < TIMEOUT, "the tables are held for a peer");
        std::thread::yield_now();
    }
    ready(&engine);
    assert!(matches!(acceptor.next_event(), EngineConnEvent::Attached(_)));
}

#[test]
fn second_engine_is_refused_after_lease_timeout() {
    let acceptor = TestAcceptor::open();
    let mut engine = acceptor.connect_engine();
    drop(engine.exchange_hello("test").unwrap());
    ready(&engine);
    assert!(matches!(acceptor.next_event(), EngineConnEvent::Attached(_)));
    let (sender, refused) = std::sync::mpsc::channel();
    for _ in 1..PEERS_MAX {
        let (mut other, sender) = (acceptor.connect_engine(), sender.clone());
        std::thread::spawn(move || sender.send(other.exchange_hello("other").is_err()));
    }
    for _ in 1..PEERS_MAX {
        assert!(refused.recv_timeout(TIMEOUT).expect("sent away in time"), "there is an engine");
    }
    assert!(acceptor.messages.try_recv().is_err(), "the engine was not disturbed");
}

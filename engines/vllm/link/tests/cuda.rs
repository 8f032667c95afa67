//! A worker on a GPU, through the stand-in for its driver: a sidecar and a worker in processes of their own. The library
//! path of a process is fixed when it starts, so a test starts the sidecar, which starts the worker.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_cuda_standin::test_machine::{TestMachine, folder_in_memory};
use sluice_link::control::ControlPage;
use sluice_link::message::{Device, WorkerSetup};
use sluice_link::server::worker::{WorkerEvent, WorkerLink, WorkerMemory};
use sluice_link::server::{FirstMessage, Listener};
use sluice_link::vocabulary::{ActionId, Address, ChunkId, KvChunkId, LayerId, MapOp};
use sluice_memory::cuda::{self, Chunk, Context, Driver, Range, Stream};
use sluice_vllm_link::SLUICE_REFUSED;

use crate::c_link::CLink;
use crate::host_sidecar::{LIMIT, WORKER};
use crate::processes::{case, socket, with_socket};

/// The smallest chunk of a GPU.
const CHUNK: u64 = 2 << 20;
const CHUNKS: u32 = 6;
const LAYER: u32 = 0x0101_0101;
const NAN: u32 = 0xffff_ffff;
const SHARED: u32 = 0x0707_0707;

#[test]
fn a_worker_maps_the_chunks_that_its_sidecar_has_created() {
    let folder = tempfile::TempDir::new_in(folder_in_memory()).unwrap();
    let machine = TestMachine::new(folder.path()).unwrap();
    let output = case("cuda::sidecar").envs(machine.variables()).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(machine.assert_nothing_held(), 2, "both processes have ended by themselves");
}

/// The device's memory as the sidecar sees it.
struct Memory {
    chunks: Vec<Arc<Chunk>>,
    range: Range,
    stream: Stream,
}

impl Memory {
    fn create(context: &Context) -> Memory {
        let chunks: Vec<_> = (0..CHUNKS).map(|_| Chunk::create(context, CHUNK).unwrap()).collect();
        let mut range = Range::reserve(context, u64::from(CHUNKS) * CHUNK).unwrap();
        for (at, chunk) in (0..).zip(&chunks) {
            range.map_with_access(at * CHUNK, chunk).unwrap();
        }
        Memory { chunks, range, stream: Stream::new(context).unwrap() }
    }

    fn export(&self) -> Vec<(ChunkId, OwnedFd)> {
        (0..).map(ChunkId).zip(self.chunks.iter().map(|chunk| chunk.export().unwrap())).collect()
    }

    fn fill(&self, chunk: u64, word: u32) {
        fill(&self.stream, self.range.at(chunk * CHUNK), word);
    }

    fn word(&self, chunk: u64) -> Option<u32> {
        word(&self.stream, self.range.at(chunk * CHUNK))
    }
}

fn fill(stream: &Stream, at: cuda::Address, word: u32) {
    stream.fill(at, word, CHUNK).unwrap();
    stream.finish().unwrap();
}

/// Returns the word that fills a whole chunk.
fn word(stream: &Stream, at: cuda::Address) -> Option<u32> {
    let mut bytes = vec![0; CHUNK as usize];
    // SAFETY: the bytes are not accessed before the stream has finished.
    unsafe { stream.download_bytes(&mut bytes, at) }.unwrap();
    stream.finish().unwrap();
    let first = [bytes[0], bytes[1], bytes[2], bytes[3]];
    bytes.chunks(4).all(|word| word == first).then(|| u32::from_le_bytes(first))
}

fn map(address: Address, chunk: u32) -> MapOp {
    MapOp::Map(address, ChunkId(chunk))
}

fn layer(layer: u16, part: u32) -> Address {
    Address::Layer(LayerId(layer), part)
}

fn reply(link: &mut WorkerLink) -> WorkerEvent {
    link.receiver.recv_within(LIMIT).unwrap()
}

#[test]
#[ignore = "a process of another test"]
fn sidecar() {
    let device = cuda::Device::open(Driver::open().unwrap(), 0).unwrap();
    let memory = Memory::create(&Context::new(device).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let listener = Listener::bind(&path).unwrap();
    let mut worker = with_socket(case("cuda::worker"), &path).spawn().unwrap();
    let FirstMessage::Worker(handshake) = listener.accept(LIMIT).unwrap().unwrap().recv_first().unwrap()
    else {
        panic!("a worker connected")
    };
    let control = ControlPage::create_with_passes(2).unwrap();
    let lock = tempfile::tempfile().unwrap();
    let setup = WorkerSetup {
        device: Device::Cuda { uuid: device.uuid_bytes().unwrap() },
        chunk_bytes: CHUNK,
        capacity_chunks: CHUNKS,
        layer_chunks: vec![2, 1],
        kv_chunks: 3,
    };
    let shared = WorkerMemory { pool: None, control: &control, lifetime_lock: lock.as_fd() };
    let mut link = handshake.send_setup(&setup, shared).unwrap();

    memory.fill(4, LAYER);
    memory.fill(5, NAN);
    link.sender.send_chunks(&memory.export()).unwrap();
    let kv = KvChunkId(1);
    // Chunk 2 is behind two layers.
    let ops = [map(layer(0, 0), 4), map(layer(0, 1), 2), map(layer(1, 0), 2), map(Address::Kv(kv), 5)];
    link.sender.send_remap(ActionId(1), &ops).unwrap();
    assert_eq!(reply(&mut link), WorkerEvent::Applied { id: ActionId(1) });
    link.sender.send_zero(ActionId(2), &[kv]).unwrap();
    assert_eq!(reply(&mut link), WorkerEvent::Applied { id: ActionId(2) });
    assert!(matches!(reply(&mut link), WorkerEvent::Loaded(_)));
    let words = [2, 4, 5].map(|chunk| memory.word(chunk));
    assert_eq!(words, [Some(SHARED), Some(LAYER), Some(0)], "what the worker wrote, left and zeroed");

    link.sender.send_release(ActionId(3), &[ChunkId(2)]).unwrap();
    assert!(matches!(reply(&mut link), WorkerEvent::Refused { .. }), "it is mapped");
    link.sender.send_remap(ActionId(4), &[map(layer(0, 0), 0)]).unwrap();
    assert!(matches!(reply(&mut link), WorkerEvent::Refused { .. }), "chunk 4 is there");
    let unmaps = [MapOp::Unmap(layer(0, 1), ChunkId(2)), MapOp::Unmap(layer(1, 0), ChunkId(2))];
    link.sender.send_remap(ActionId(5), &unmaps).unwrap();
    assert_eq!(reply(&mut link), WorkerEvent::Applied { id: ActionId(5) });
    link.sender.send_release(ActionId(6), &[ChunkId(2), ChunkId(0)]).unwrap();
    assert_eq!(reply(&mut link), WorkerEvent::Applied { id: ActionId(6) });
    link.sender.send_bye().unwrap();
    assert!(worker.wait().unwrap().success());
    assert!(link.process.wait_exit(LIMIT).unwrap());
}

#[test]
#[ignore = "a process of another test"]
fn worker() {
    let link = CLink::worker(&socket(), WORKER).unwrap();
    assert_eq!(link.setup()["device"], "cuda");
    assert_eq!(link.setup()["device_uuid"].as_str().map(str::len), Some(36));
    link.reserve().unwrap();
    let next = |expected: Value| assert_eq!(link.next(), expected);
    next(json!({"type": "remap", "id": 1, "maps": 4, "unmaps": 0}));
    link.apply(1).unwrap();
    next(json!({"type": "zero", "id": 2, "positions": 1}));
    link.apply(2).unwrap();

    // Other code of the process, as PyTorch: it shares the context.
    let device = cuda::Device::open(Driver::open().unwrap(), 0).unwrap();
    let stream = Stream::new(&Context::primary(device).unwrap()).unwrap();
    let [first, second] = [0, 1].map(|layer| link.layer_range(layer).unwrap());
    assert_eq!((first.1, second.1, link.kv_range().unwrap().1), (2 * CHUNK, CHUNK, 3 * CHUNK));
    assert_eq!(word(&stream, first.0), Some(LAYER));
    fill(&stream, second.0, SHARED);
    assert_eq!(word(&stream, first.0 + CHUNK), Some(SHARED), "one chunk behind two addresses");
    assert_eq!(word(&stream, link.kv_range().unwrap().0 + CHUNK), Some(0));
    link.send(r#"{"type": "loaded", "layer_bytes": [1, 1]}"#).unwrap();

    next(json!({"type": "remap", "id": 4, "maps": 1, "unmaps": 0}));
    assert_eq!(link.apply(4).unwrap_err().0, SLUICE_REFUSED);
    next(json!({"type": "remap", "id": 5, "maps": 0, "unmaps": 2}));
    link.apply(5).unwrap();
    next(json!({"type": "bye"}));
}

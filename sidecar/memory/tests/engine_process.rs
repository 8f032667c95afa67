//! The engine's side of a GPU's memory in a process of its own, as in production: chunks arrive as descriptors, and each
//! process has its context. The words of layers stay with the test: `sluice-kernels` tests an engine that sets them.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use sluice_memory::cuda::Stream;
use sluice_memory::{ChunkPool, CudaMapping, RangeSizes};
use sluice_policy::action::{Address, MapOp};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ChunkId, KvChunkId, LayerId};

use super::engine_mapping::{EngineMapping, gpu, on_gpu};

/// Faults of the driver in engines: they do not inherit those of the sidecar.
pub const FAULTS_VAR: &str = "SLUICE_TEST_ENGINE_FAULTS";
/// Most words and descriptors of a message.
const MAX_WORDS: usize = 4096;
const MAX_DESCRIPTORS: usize = 64;

/// What a message asks for: its first word.
const SETUP: u32 = 0;
const IMPORT: u32 = 1;
const APPLY: u32 = 2;
const READ: u32 = 3;
const WRITE: u32 = 4;
const RELEASE: u32 = 5;

/// An engine's process. It ends when the socket closes.
pub struct RemoteEngine {
    pool: Arc<ChunkPool>,
    chunk_bytes: usize,
    /// `None` once the engine is to end.
    socket: Option<Socket>,
    /// Bytes that are read or written.
    bytes: OwnedFd,
    imported: BTreeSet<ChunkId>,
    process: Child,
}

impl RemoteEngine {
    pub fn start(pool: Arc<ChunkPool>, geometry: &Geometry, sizes: &RangeSizes) -> RemoteEngine {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "engine_process::engine", "--ignored", "--nocapture"]);
        command.env("SLUICE_STANDIN_FAULTS", std::env::var_os(FAULTS_VAR).unwrap_or_default());
        let process = command.stdin(theirs).stdout(Stdio::null()).spawn().unwrap();
        let bytes = memfd_create("bytes", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&bytes, geometry.chunk_bytes).unwrap();
        let socket = Socket(ours);
        let tail = [sizes.global_chunks, sizes.kv_chunks, sizes.activation_chunks, sizes.staging_chunks];
        let words = [&[SETUP, geometry.chunk_bytes as u32], &tail[..], &sizes.layer_chunks].concat();
        assert!(socket.ask(&words, &[bytes.as_fd()]));
        let (chunk_bytes, imported) = (geometry.chunk_bytes as usize, BTreeSet::new());
        RemoteEngine { pool, chunk_bytes, socket: Some(socket), bytes, imported, process }
    }

    fn ask(&self, words: &[u32]) -> bool {
        self.socket.as_ref().expect("the engine runs").ask(words, &[])
    }

    fn import(&mut self, chunk: ChunkId) {
        if self.imported.insert(chunk) {
            let [descriptor] = <[OwnedFd; 1]>::try_from(self.pool.export(&[chunk]).unwrap()).unwrap();
            let socket = self.socket.as_ref().expect("the engine runs");
            assert!(socket.ask(&[IMPORT, chunk.0], &[descriptor.as_fd()]));
        }
    }
}

impl EngineMapping for RemoteEngine {
    fn apply_all(&mut self, ops: &[MapOp]) -> bool {
        let mut words = vec![APPLY];
        for op in ops {
            let (maps, address, chunk) = match *op {
                MapOp::Map(address, chunk) => (1, address, chunk),
                MapOp::Unmap(address, chunk) => (0, address, chunk),
            };
            if maps == 1 {
                self.import(chunk);
            }
            words.extend([maps, chunk.0]);
            words.extend(address_words(address));
        }
        self.ask(&words)
    }

    fn read(&self, address: Address) -> Option<Vec<u8>> {
        let [kind, at, layer] = address_words(address);
        self.ask(&[READ, kind, at, layer]).then(|| {
            let mut bytes = vec![0; self.chunk_bytes];
            assert_eq!(pread(&self.bytes, &mut *bytes, 0).unwrap(), self.chunk_bytes);
            bytes
        })
    }

    fn write(&self, address: Address, offset: usize, bytes: &[u8]) {
        assert_eq!(pwrite(&self.bytes, bytes, 0).unwrap(), bytes.len());
        let [kind, at, layer] = address_words(address);
        assert!(self.ask(&[WRITE, kind, at, layer, offset as u32, bytes.len() as u32]));
    }

    fn release(&mut self, chunk: ChunkId) {
        if self.imported.remove(&chunk) {
            assert!(self.ask(&[RELEASE, chunk.0]), "{chunk:?} is released");
        }
    }
}

impl Drop for RemoteEngine {
    fn drop(&mut self) {
        self.socket = None;
        let status = self.process.wait().unwrap();
        assert!(status.success() || std::thread::panicking(), "the engine ends: {status}");
    }
}

/// The engine: its socket is stdin.
#[test]
#[ignore = "a process of the other tests, which start it"]
fn engine() {
    if !on_gpu() {
        println!("skipped: only other tests start this one");
        return;
    }
    let socket = Socket(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let (words, descriptors) = socket.recv().expect("a setup");
    let [bytes] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
    let mut engine = CudaEngine::new(&words, bytes);
    socket.send(&[1], &[]);
    while let Some((words, descriptors)) = socket.recv() {
        let done = engine.answer(&words, &descriptors);
        socket.send(&[u32::from(done)], &[]);
    }
}

/// Maps and reads chunks of a GPU that another process has created.
struct CudaEngine {
    mapping: CudaMapping,
    stream: Stream,
    bytes: OwnedFd,
}

impl CudaEngine {
    fn new(words: &[u32], bytes: OwnedFd) -> CudaEngine {
        let [SETUP, chunk_bytes, global_chunks, kv_chunks, activation_chunks, staging_chunks, layers @ ..] =
            words
        else {
            panic!("{words:?} is no setup");
        };
        let sizes = RangeSizes {
            global_chunks: *global_chunks,
            layer_chunks: layers.to_vec(),
            kv_chunks: *kv_chunks,
            activation_chunks: *activation_chunks,
            staging_chunks: *staging_chunks,
        };
        let context = gpu();
        let mapping = CudaMapping::reserve(&context, u64::from(*chunk_bytes), &sizes).unwrap();
        CudaEngine { mapping, stream: Stream::new(&context).unwrap(), bytes }
    }

    fn answer(&mut self, words: &[u32], descriptors: &[OwnedFd]) -> bool {
        match *words {
            [IMPORT, chunk] => self.mapping.import(ChunkId(chunk), descriptors[0].as_fd()).is_ok(),
            [APPLY, ref ops @ ..] => {
                let ops: Vec<_> = ops.chunks_exact(5).map(map_op).collect();
                self.mapping.apply_all(&ops).is_ok()
            }
            [READ, kind, at, layer] => self.read(address_of([kind, at, layer])),
            [WRITE, kind, at, layer, offset, bytes] => {
                self.write(address_of([kind, at, layer]), offset.into(), bytes as usize);
                true
            }
            [RELEASE, chunk] => self.mapping.release(ChunkId(chunk)).is_ok(),
            _ => panic!("{words:?} is no order"),
        }
    }

    fn read(&self, address: Address) -> bool {
        if self.mapping.chunk_at(address).is_none() {
            return false;
        }
        let mut bytes = vec![0; self.mapping.chunk_bytes() as usize];
        // SAFETY: the stream is finished before the bytes are used.
        unsafe { self.stream.download_bytes(&mut bytes, self.mapping.position(address).unwrap()).unwrap() };
        self.stream.finish().unwrap();
        pwrite(&self.bytes, &bytes, 0).unwrap() == bytes.len()
    }

    fn write(&self, address: Address, offset: u64, bytes: usize) {
        let mut written = vec![0; bytes];
        assert_eq!(pread(&self.bytes, &mut *written, 0).unwrap(), bytes);
        let at = self.mapping.position(address).unwrap() + offset;
        // SAFETY: the stream is finished before the bytes go.
        unsafe { self.stream.upload_bytes(at, &written).unwrap() };
        self.stream.finish().unwrap();
    }
}

fn map_op(words: &[u32]) -> MapOp {
    let [maps, chunk, kind, at, layer] = *words else { panic!("{words:?} is no change") };
    let (address, chunk) = (address_of([kind, at, layer]), ChunkId(chunk));
    if maps == 1 { MapOp::Map(address, chunk) } else { MapOp::Unmap(address, chunk) }
}

/// Returns the range of an address, its place in it, and its layer.
fn address_words(address: Address) -> [u32; 3] {
    match address {
        Address::Global(at) => [0, at, 0],
        Address::Layer(layer, at) => [1, at, layer.0.into()],
        Address::Kv(chunk) => [2, chunk.0, 0],
        Address::Activation(at) => [3, at, 0],
        Address::Staging(at) => [4, at, 0],
    }
}

fn address_of([kind, at, layer]: [u32; 3]) -> Address {
    match kind {
        0 => Address::Global(at),
        1 => Address::Layer(LayerId(layer as u16), at),
        2 => Address::Kv(KvChunkId(at)),
        3 => Address::Activation(at),
        _ => Address::Staging(at),
    }
}

/// Messages of words, with descriptors.
struct Socket(OwnedFd);

impl Socket {
    /// Sends an order, and waits for the answer.
    fn ask(&self, words: &[u32], descriptors: &[BorrowedFd<'_>]) -> bool {
        self.send(words, descriptors);
        self.recv().expect("the engine's process answers").0 == [1]
    }

    fn send(&self, words: &[u32], descriptors: &[BorrowedFd<'_>]) {
        assert!(words.len() <= MAX_WORDS, "a message of {} words", words.len());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    }

    /// Returns the next message; `None` if the other end is closed.
    fn recv(&self) -> Option<(Vec<u32>, Vec<OwnedFd>)> {
        let mut bytes = vec![0; 4 * MAX_WORDS];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&self.0, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
        let descriptors = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        let words = bytes[..got].chunks_exact(4).map(|four| u32::from_ne_bytes(four.try_into().unwrap()));
        (got > 0).then(|| (words.collect(), descriptors))
    }
}

//! A device memory with recognisable host weights, a stand-in control page and a stand-in engine.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sluice_memory::backing::{Backing, SignalWord};
use sluice_memory::cuda_backing::ControlFile;
use sluice_memory::{
    CudaBacking, DeviceMemory, EngineConnection, HostBacking, HostWeights, HostWeightsBuilder, LayerGate,
    MemoryOptions, Notify, RangeSizes, Slab,
};
use sluice_policy::action::{Action, Address, MapOp, Transaction, Work};
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{ActionId, ChunkId, Generation, KvChunkId, LayerBlockId, LayerId, Nanos};
use sluice_policy::reason::Reason;
use sluice_ports::Memory;
use sluice_ports::conformance::SlabChunk;

use super::engine_mapping::{EngineMapping, gpu, new_engine_mapping, on_gpu};
use super::recorded_backing::{CallLog, RecordedBacking};

/// Time without any event after which a backend counts as idle.
const IDLE_TIMEOUT: Duration = Duration::from_millis(400);
/// Limit of a wait, which suffices on any machine.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// If set, waits are passed on too late: for a negative control.
pub const LATE_WAITS_VAR: &str = "SLUICE_TEST_LATE_WAITS";

/// Returns a geometry with `layers` layers of `slab_bytes`.
pub fn geometry(chunk_bytes: u64, capacity_chunks: u32, layers: usize, slab_bytes: u64) -> Geometry {
    Geometry {
        chunk_bytes,
        capacity_chunks,
        global_bytes: chunk_bytes / 2,
        slab_bytes: vec![slab_bytes; layers],
        layer_block_bytes: chunk_bytes / 8,
        activation: ActivationCost::default(),
        staging_chunks: 1,
    }
}

pub fn ranges(geometry: &Geometry) -> RangeSizes {
    let layers = 0..usize::from(geometry.layers());
    RangeSizes {
        global_chunks: geometry.chunks_for(geometry.global_bytes),
        layer_chunks: layers.map(|l| geometry.slab_chunks(l)).collect(),
        kv_chunks: geometry.capacity_chunks,
        activation_chunks: 2,
        staging_chunks: geometry.staging_chunks,
    }
}

/// Returns the default options.
pub fn options(geometry: &Geometry) -> MemoryOptions {
    MemoryOptions {
        geometry: geometry.clone(),
        ranges: ranges(geometry),
        poison: false,
        copy_threads: 1,
        link_bytes_per_s: None,
        to_host_bytes_per_s: None,
        host_kv_bytes: 0,
        quota: Arc::new(sluice_memory::UnsharedQuota),
    }
}

/// Returns the word that fills a chunk of a slab; it identifies the slab and the chunk.
fn slab_word(slab: usize, part: usize) -> u32 {
    ((slab as u32 + 1) << 16) | part as u32
}

pub fn master(geometry: &Geometry) -> Arc<HostWeights> {
    let copy = HostWeightsBuilder::new(geometry.global_bytes, &geometry.slab_bytes);
    fill_weights(copy.unwrap(), geometry)
}

fn fill_weights(mut copy: HostWeightsBuilder, geometry: &Geometry) -> Arc<HostWeights> {
    let layers = (0..geometry.layers()).map(|l| Slab::Layer(LayerId(l)));
    for (at, slab) in std::iter::once(Slab::Global).chain(layers).enumerate() {
        let parts = copy.slab_mut(slab).chunks_mut(geometry.chunk_bytes as usize);
        parts.enumerate().for_each(|(part, bytes)| fill_words(bytes, slab_word(at, part)));
    }
    Arc::new(copy.freeze().unwrap())
}

fn fill_words(bytes: &mut [u8], word: u32) {
    bytes.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&word.to_ne_bytes()));
}

/// Returns the bytes of one chunk of a layer's slab.
pub fn layer_chunk_bytes(geometry: &Geometry, layer: LayerId, part: usize) -> Vec<u8> {
    let mut bytes = vec![0; geometry.chunk_bytes as usize];
    fill_words(&mut bytes, slab_word(layer.index() + 1, part));
    bytes
}

/// Returns the word that all of `bytes` consists of, if there is one.
fn uniform(bytes: &[u8]) -> Option<u32> {
    let first: [u8; 4] = bytes[..4].try_into().unwrap();
    bytes.chunks_exact(4).all(|four| four == first).then(|| u32::from_ne_bytes(first))
}

/// Returns the slab chunk that `bytes` contain, if they contain exactly one.
pub fn decode(geometry: &Geometry, bytes: &[u8]) -> Option<SlabChunk> {
    let first = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
    let (slab, part) = ((first >> 16).checked_sub(1)? as usize, first & 0xFFFF);
    let whole = if slab == 0 { geometry.global_bytes } else { *geometry.slab_bytes.get(slab - 1)? };
    let used = whole.checked_sub(u64::from(part) * geometry.chunk_bytes)?.min(geometry.chunk_bytes);
    uniform(&bytes[..used as usize])?;
    let layer = slab.checked_sub(1).map(|l| LayerId(l as u16));
    Some(SlabChunk { layer, chunk: part })
}

/// `ready` and `done` of weights and KV in ordinary memory.
#[derive(Debug)]
pub struct ControlPage {
    words: Mutex<PageWords>,
    changed: Condvar,
    /// The words that streams read and write. The CPU sets `done` here too, and never `ready`.
    file: OwnedFd,
}

#[derive(Debug)]
struct PageWords {
    done: Vec<Generation>,
    /// Global slab, then the layers.
    ready: Vec<Generation>,
    kv_done: Vec<Generation>,
    kv_ready: Vec<Generation>,
}

impl ControlPage {
    pub fn new(layers: u16) -> Arc<ControlPage> {
        let zero = |n| vec![Generation(0); n];
        let layers = usize::from(layers);
        let (done, ready) = (zero(layers), zero(layers + 1));
        let words = PageWords { done, ready, kv_done: zero(layers), kv_ready: zero(layers) };
        let file = memfd_create("control", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, CONTROL_BYTES).unwrap();
        Arc::new(ControlPage { words: Mutex::new(words), changed: Condvar::new(), file })
    }

    fn control_file(&self) -> ControlFile {
        let file = self.file.try_clone().unwrap();
        ControlFile { file, bytes: CONTROL_BYTES, offset: word_offset }
    }

    /// Returns the word as streams have it.
    pub fn device_word(&self, word: SignalWord) -> Generation {
        let mut bytes = [0; 8];
        rustix::io::pread(&self.file, &mut bytes, word_offset(word).unwrap()).unwrap();
        Generation(u64::from_ne_bytes(bytes))
    }

    fn set_device_word(&self, word: SignalWord, generation: Generation) {
        let bytes = generation.0.to_ne_bytes();
        rustix::io::pwrite(&self.file, &bytes, word_offset(word).unwrap()).unwrap();
    }

    pub fn set_done(&self, layer: LayerId, generation: Generation) {
        self.set_device_word(SignalWord::Done(layer), generation);
        self.words.lock().unwrap().done[layer.index()] = generation;
        self.changed.notify_all();
    }

    pub fn ready(&self, layer: Option<LayerId>) -> Generation {
        self.words.lock().unwrap().ready[layer.map_or(0, |l| l.index() + 1)]
    }

    pub fn set_kv_done(&self, layer: LayerId, generation: Generation) {
        self.set_device_word(SignalWord::KvDone(layer), generation);
        self.words.lock().unwrap().kv_done[layer.index()] = generation;
        self.changed.notify_all();
    }

    pub fn kv_ready(&self, layer: LayerId) -> Generation {
        self.words.lock().unwrap().kv_ready[layer.index()]
    }

    /// Waits for a `ready` with a timeout that suffices on any machine.
    pub fn wait_ready(&self, layer: LayerId, generation: Generation) -> bool {
        let words = self.words.lock().unwrap();
        let missing = |words: &mut PageWords| words.ready[layer.index() + 1] != generation;
        !self.changed.wait_timeout_while(words, Duration::from_secs(20), missing).unwrap().1.timed_out()
    }
}

impl LayerGate for ControlPage {
    fn is_done(&self, layer: LayerId, generation: Generation) -> bool {
        self.words.lock().unwrap().done[layer.index()] >= generation
    }

    fn wait_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool {
        let words = self.words.lock().unwrap();
        let missing = |words: &mut PageWords| words.done[layer.index()] < generation;
        !self.changed.wait_timeout_while(words, timeout, missing).unwrap().1.timed_out()
    }

    fn publish_ready(&self, layer: Option<LayerId>, generation: Generation) {
        self.words.lock().unwrap().ready[layer.map_or(0, |l| l.index() + 1)] = generation;
        self.changed.notify_all();
    }

    fn is_kv_done(&self, layer: LayerId, generation: Generation) -> bool {
        self.words.lock().unwrap().kv_done[layer.index()] >= generation
    }

    fn wait_kv_done(&self, layer: LayerId, generation: Generation, timeout: Duration) -> bool {
        let words = self.words.lock().unwrap();
        let missing = |words: &mut PageWords| words.kv_done[layer.index()] < generation;
        !self.changed.wait_timeout_while(words, timeout, missing).unwrap().1.timed_out()
    }

    fn publish_kv_ready(&self, layer: LayerId, generation: Generation) {
        self.words.lock().unwrap().kv_ready[layer.index()] = generation;
        self.changed.notify_all();
    }
}

/// Bytes of the words that streams use.
const CONTROL_BYTES: u64 = 64 << 10;

/// Returns the byte offset of a word, if streams use it.
pub fn word_offset(word: SignalWord) -> Option<u64> {
    let (layer, line) = match word {
        SignalWord::Ready(None) => return None,
        SignalWord::Ready(Some(layer)) => (layer, 0),
        SignalWord::Done(layer) => (layer, 1),
        SignalWord::KvDone(layer) => (layer, 2),
    };
    Some((4 * layer.index() as u64 + line) * 64)
}

/// Event that wakes the owner.
enum Wake {
    Worker,
    Answer(ActionId, bool),
}

enum Command {
    Remap(ActionId, Vec<MapOp>),
    Read(Address, Sender<Option<Vec<u8>>>),
    Write(Address, usize, Vec<u8>, Sender<()>),
    /// The sidecar frees these chunks.
    Release(ActionId, Vec<ChunkId>),
    Stop,
}

/// Runs the engine's thread: applies mappings, and reads and writes through its own addresses.
fn engine(mut mapping: Box<dyn EngineMapping>, commands: &Receiver<Command>, wake: &Sender<Wake>) {
    while let Ok(command) = commands.recv() {
        match command {
            Command::Remap(id, ops) => {
                let ok = mapping.apply_all(&ops);
                let _ = wake.send(Wake::Answer(id, ok));
            }
            Command::Read(address, reply) => reply.send(mapping.read(address)).unwrap(),
            Command::Write(address, offset, bytes, written) => {
                mapping.write(address, offset, &bytes);
                written.send(()).unwrap();
            }
            Command::Release(id, chunks) => {
                chunks.into_iter().for_each(|chunk| mapping.release(chunk));
                let _ = wake.send(Wake::Answer(id, true));
            }
            Command::Stop => return,
        }
    }
}

struct TestEngineConnection {
    commands: Sender<Command>,
    attached: Arc<Mutex<bool>>,
}

impl EngineConnection for TestEngineConnection {
    fn remap(&mut self, id: ActionId, ops: &[MapOp]) -> bool {
        *self.attached.lock().unwrap() && self.commands.send(Command::Remap(id, ops.to_vec())).is_ok()
    }

    fn release(&mut self, id: ActionId, chunks: &[ChunkId]) -> bool {
        on_gpu()
            && *self.attached.lock().unwrap()
            && self.commands.send(Command::Release(id, chunks.to_vec())).is_ok()
    }
}

/// A device memory with its control page and engine.
pub struct Harness {
    // Dropped first: its copies use words and host memory.
    pub memory: DeviceMemory,
    /// The calls of the memory to its backing.
    pub calls: CallLog,
    pub page: Arc<ControlPage>,
    pub notify: Notify,
    pub geometry: Geometry,
    commands: Sender<Command>,
    engine: Option<JoinHandle<()>>,
    attached: Arc<Mutex<bool>>,
    wakes: Receiver<Wake>,
    held: Option<Vec<(ActionId, bool)>>,
    orders: u64,
    ended: Vec<Completion>,
}

impl Harness {
    pub fn new(geometry: &Geometry) -> Harness {
        Harness::with(geometry, |_| ())
    }

    /// Creates a harness with changed options.
    pub fn with(geometry: &Geometry, change: impl Fn(&mut MemoryOptions)) -> Harness {
        Harness::over(geometry, change, |weights| fill_weights(weights, geometry))
    }

    /// Creates a harness whose engine loads the weights.
    pub fn uncaptured(geometry: &Geometry) -> Harness {
        Harness::over(geometry, |_| (), |weights| Arc::new(weights.uncaptured()))
    }

    fn over(
        geometry: &Geometry,
        change: impl Fn(&mut MemoryOptions),
        master: impl FnOnce(HostWeightsBuilder) -> Arc<HostWeights>,
    ) -> Harness {
        let mut options = options(geometry);
        change(&mut options);
        let (wake, wakes) = channel();
        let (commands, inbox) = channel();
        let page = ControlPage::new(geometry.layers());
        let attached = Arc::new(Mutex::new(true));
        let peer = TestEngineConnection { commands: commands.clone(), attached: attached.clone() };
        let to_owner = wake.clone();
        let notify: Notify = Arc::new(move || _ = to_owner.send(Wake::Worker));
        let calls = CallLog::default();
        let record = |backing: Box<dyn Backing>| {
            let late_waits = std::env::var_os(LATE_WAITS_VAR).is_some();
            Box::new(RecordedBacking::new(backing, geometry.chunk_bytes, calls.clone(), late_waits))
        };
        let (backing, weights) = if on_gpu() {
            let context = gpu();
            let control = page.control_file();
            let backing =
                CudaBacking::new(&context, geometry.chunk_bytes, geometry.capacity_chunks, Some(control));
            let weights =
                HostWeightsBuilder::registered(&context, geometry.global_bytes, &geometry.slab_bytes);
            (record(Box::new(backing.unwrap())), weights)
        } else {
            let backing = HostBacking::new(geometry.chunk_bytes, geometry.capacity_chunks).unwrap();
            let weights = HostWeightsBuilder::new(geometry.global_bytes, &geometry.slab_bytes);
            (record(Box::new(backing)), weights)
        };
        let (master, gate) = (master(weights.unwrap()), page.clone());
        let memory =
            DeviceMemory::over(backing, options, master, gate, Box::new(peer), notify.clone()).unwrap();
        let pool = memory.pool().clone();
        let sizes = geometry.clone();
        let engine = std::thread::spawn(move || {
            let mapping = new_engine_mapping(pool, &sizes, ranges(&sizes));
            engine(mapping, &inbox, &wake);
        });
        let (held, ended) = (None, Vec::new());
        Harness {
            memory,
            page,
            notify,
            geometry: geometry.clone(),
            calls,
            commands,
            engine: Some(engine),
            attached,
            wakes,
            held,
            orders: 0,
            ended,
        }
    }

    fn command(&self, command: Command) {
        self.commands.send(command).unwrap();
    }

    pub fn advance(&mut self) -> bool {
        self.advance_within(IDLE_TIMEOUT)
    }

    fn advance_within(&mut self, limit: Duration) -> bool {
        match self.wakes.recv_timeout(limit) {
            Ok(Wake::Answer(id, ok)) => {
                match &mut self.held {
                    Some(held) => held.push((id, ok)),
                    None => assert!(self.memory.on_acknowledge(id, ok), "the answer was awaited"),
                }
                true
            }
            Ok(Wake::Worker) => true,
            Err(_) => false,
        }
    }

    pub fn hold_engine(&mut self, held: bool) {
        let answers = if held { self.held.replace(Vec::new()) } else { self.held.take() };
        for (id, ok) in answers.unwrap_or_default() {
            self.memory.on_acknowledge(id, ok);
        }
    }

    /// Waits until an answer of the engine is held.
    pub fn wait_for_held_answer(&mut self) {
        self.wait_until("the engine answers", |world| {
            world.held.as_ref().is_some_and(|held| !held.is_empty())
        });
    }

    /// Handles wake-ups until `holds`.
    fn wait_until(&mut self, what: &str, holds: impl Fn(&Harness) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < WAIT_LIMIT, "in vain: {what}");
            self.advance_within(Duration::from_millis(1));
        }
    }

    pub fn detach_engine(&mut self) {
        *self.attached.lock().unwrap() = false;
    }

    pub fn read(&self, address: Address) -> Option<Vec<u8>> {
        let (reply, bytes) = channel();
        self.command(Command::Read(address, reply));
        bytes.recv().unwrap()
    }

    pub fn contents(&self, address: Address) -> Option<SlabChunk> {
        decode(&self.geometry, &self.read(address)?)
    }

    pub fn write_layer_block(&self, layer_block: LayerBlockId, tag: u32) {
        let mut bytes = vec![0; self.geometry.layer_block_bytes as usize];
        fill_words(&mut bytes, tag | 1 << 31);
        self.write_bytes(layer_block, bytes);
    }

    /// Writes these bytes to the front of a block as the engine.
    pub fn write_bytes(&self, layer_block: LayerBlockId, bytes: Vec<u8>) {
        let (kv_chunk, offset) = self.layer_block_location(layer_block);
        let (written, done) = channel();
        self.command(Command::Write(kv_chunk, offset, bytes, written));
        done.recv().unwrap();
    }

    /// Returns all bytes of a block as the engine reads them.
    pub fn layer_block_bytes(&self, layer_block: LayerBlockId) -> Option<Vec<u8>> {
        let (kv_chunk, offset) = self.layer_block_location(layer_block);
        let bytes = self.read(kv_chunk)?;
        Some(bytes[offset..offset + self.geometry.layer_block_bytes as usize].to_vec())
    }

    pub fn layer_block(&self, layer_block: LayerBlockId) -> Option<u32> {
        let word = uniform(&self.layer_block_bytes(layer_block)?)?;
        (word >> 31 == 1 && word != u32::MAX).then_some(word & !(1 << 31))
    }

    fn layer_block_location(&self, layer_block: LayerBlockId) -> (Address, usize) {
        let per_chunk = self.geometry.layer_blocks_per_chunk();
        let offset = u64::from(layer_block.0 % per_chunk) * self.geometry.layer_block_bytes;
        (Address::Kv(KvChunkId(layer_block.0 / per_chunk)), offset as usize)
    }

    pub fn submit_work(&mut self, work: Work) -> ActionId {
        self.submit_with_reason(Reason::Load, work)
    }

    /// Submits an order with deadline `due`.
    pub fn submit_with_deadline(&mut self, due: Option<Nanos>, work: Work) -> ActionId {
        self.submit(Reason::Load, due, work)
    }

    /// Submits an order with deadline `due` and waits until the link has carried its first bytes. No other order uses
    /// the link.
    pub fn submit_to_link(&mut self, due: Option<Nanos>, work: Work) -> ActionId {
        let before = self.memory.transferred_bytes();
        let id = self.submit_with_deadline(due, work);
        self.wait_until("the link carries it", |world| world.memory.transferred_bytes() > before);
        id
    }

    fn submit_with_reason(&mut self, reason: Reason, work: Work) -> ActionId {
        self.submit(reason, None, work)
    }

    fn submit(&mut self, reason: Reason, due: Option<Nanos>, work: Work) -> ActionId {
        self.orders += 1;
        let id = ActionId(self.orders);
        self.memory.submit(Nanos(0), Action { id, work, reason, due });
        id
    }

    pub fn collect(&mut self) {
        while let Some(completion) = self.memory.poll(Nanos(0)) {
            self.ended.push(completion);
        }
    }

    pub fn outcome(&mut self, id: ActionId) -> Option<Outcome> {
        self.collect();
        self.ended.iter().find(|c| c.id == id).map(|c| c.outcome)
    }

    pub fn wait(&mut self, id: ActionId) -> Outcome {
        let first = self.wait_for_first(&[id]);
        self.outcome(first).expect("it has ended")
    }

    /// Waits until one of these orders has ended; the first of them that did.
    pub fn wait_for_first(&mut self, ids: &[ActionId]) -> ActionId {
        let begun = Instant::now();
        loop {
            self.collect();
            if let Some(first) = self.ended.iter().map(|done| done.id).find(|id| ids.contains(id)) {
                return first;
            }
            assert!(begun.elapsed() < WAIT_LIMIT, "{ids:?} never end");
            self.advance();
        }
    }

    pub fn run(&mut self, work: Work) -> Outcome {
        let id = self.submit_work(work);
        self.wait(id)
    }

    pub fn succeed(&mut self, work: Work) {
        self.succeed_with_reason(Reason::Load, work);
    }

    pub fn succeed_with_reason(&mut self, reason: Reason, work: Work) {
        let shown = format!("{work:?}");
        let id = self.submit_with_reason(reason, work);
        let outcome = self.wait(id);
        assert!(matches!(outcome, Outcome::Done { .. }), "{shown} ended as {outcome:?}");
    }

    /// Advances until nothing more completes.
    pub fn settle(&mut self) {
        while self.advance() {
            self.collect();
        }
        self.collect();
    }

    pub fn completions(&self) -> &[Completion] {
        &self.ended
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // Before the memory goes, and before the process reports what it holds.
        let _ = self.commands.send(Command::Stop);
        if let Some(engine) = self.engine.take() {
            // An engine that panicked has reported itself.
            let _ = engine.join();
        }
    }
}

pub fn chunks(range: std::ops::Range<u32>) -> Vec<ChunkId> {
    range.map(ChunkId).collect()
}

pub fn remap(ops: Vec<MapOp>, handed_over: Vec<ChunkId>) -> Work {
    Work::Transaction(Transaction { ops, handed_over })
}

/// Maps a layer's range to the chunks from `first` on.
pub fn map_layer(geometry: &Geometry, layer: LayerId, first: u32) -> Vec<MapOp> {
    let parts = 0..geometry.slab_chunks(layer.index());
    parts.map(|part| MapOp::Map(Address::Layer(layer, part), ChunkId(first + part))).collect()
}

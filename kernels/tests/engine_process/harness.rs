//! A minimal sidecar: a pool of chunks with a resident model, and an engine process that the tests drive.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sluice_link::control::ControlPage;
use sluice_link::error::LinkError;
use sluice_link::message::{Device, EngineSetup, Faults};
use sluice_link::model::ModelSpec;
use sluice_link::server::{EngineEvent, EngineLink, Listener, SharedMemory};
use sluice_link::tables::{TableShape, TableWriter};
use sluice_link::vocabulary::*;
use sluice_memory::gpu_ledger::ParticipantHandle;
use sluice_ports::compute::{SequenceStep, Step, TableUpdate};

use super::pool::Pool;
use crate::checkpoint::Checkpoint;
use crate::reference::{Reference, Rounding};
use crate::specs::on_gpu;

pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// An engine process, supervisor or bare worker, that is killed at the end of the test.
pub struct Engine(pub Child);

impl Engine {
    pub fn start(socket: &Path, more: &[&str]) -> Engine {
        Engine::start_as(Path::new(env!("CARGO_BIN_EXE_sluice-engine")), socket, more)
    }

    /// Starts the engine from another file.
    pub fn start_as(program: &Path, socket: &Path, more: &[&str]) -> Engine {
        let mut command = Command::new(program);
        command.arg("--socket").arg(socket).args(["--threads", "2"]).args(more);
        Engine(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Sends `signal` to the started process.
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }

    /// Returns the exit status if the process exits within `limit`.
    pub fn exited_within(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        let begun = std::time::Instant::now();
        loop {
            match self.0.try_wait().unwrap() {
                None if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
                ended => return ended,
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The worker of a killed supervisor exits too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// First chunk of each part of the pool, and the end.
#[derive(Clone, Copy)]
pub struct ChunkLayout {
    pub layers: u32,
    pub kv: u32,
    pub activations: u32,
    pub end: u32,
}

pub struct MiniSidecar {
    pub folder: tempfile::TempDir,
    pub setup: EngineSetup,
    pub checkpoint: Checkpoint,
    pub pool: Pool,
    pub control: ControlPage,
    pub tables: TableWriter,
    pub chunk_layout: ChunkLayout,
    /// Participant handle on a GPU with time slices; `None` on a GPU of its own.
    pub participant: Option<ParticipantHandle>,
    pub listener: Option<Listener>,
    next_step: u64,
}

fn setup(spec: &ModelSpec, faults: Faults) -> EngineSetup {
    let mut setup = EngineSetup {
        spec: spec.clone(),
        device: Device::Host,
        chunk_bytes: if on_gpu() { 2 << 20 } else { 65_536 },
        capacity_chunks: 0,
        kv_chunks: if on_gpu() { 2 } else { 24 },
        // On a GPU the workspace of cuBLASLt takes 16 chunks.
        activation_chunks: if on_gpu() { 20 } else { 96 },
        staging_chunks: 1,
        max_rows: 8,
        max_kv_blocks: 16,
        max_history: 256,
        chunk_tokens: 32,
        threads: 1,
        faults,
    };
    let layers = u32::from(spec.layers) * setup.layer_chunks();
    setup.capacity_chunks = setup.global_chunks() + layers + setup.kv_chunks + setup.activation_chunks;
    setup
}

impl MiniSidecar {
    /// Creates a pool and fills it: global, layers, then poisoned KV and activations.
    pub fn new(spec: &ModelSpec, faults: Faults) -> MiniSidecar {
        let mut setup = setup(spec, faults);
        let layers = setup.global_chunks();
        let kv = layers + u32::from(spec.layers) * setup.layer_chunks();
        let activations = kv + setup.kv_chunks;
        let places = ChunkLayout { layers, kv, activations, end: activations + setup.activation_chunks };
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool::new(places.end, setup.chunk_bytes);
        setup.device = pool.device();
        let sidecar = MiniSidecar {
            listener: Some(Listener::bind(&folder.path().join("engine.sock")).unwrap()),
            folder,
            checkpoint: crate::agreement::checkpoint(spec),
            pool,
            control: ControlPage::create(spec.layers).unwrap(),
            tables: TableWriter::create(TableShape::of(&setup)).unwrap(),
            chunk_layout: places,
            participant: None,
            setup,
            next_step: 1,
        };
        sidecar.write(0, sidecar.checkpoint.global_slab(spec).as_slice());
        for layer in 0..spec.layers {
            sidecar.write(sidecar.layer_chunk(layer), &sidecar.slab(layer));
        }
        let poisoned = u64::from(places.end - places.kv) * sidecar.setup.chunk_bytes;
        sidecar.write(places.kv, &vec![0xff; poisoned as usize]);
        sidecar
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("engine.sock")
    }

    pub fn slab(&self, layer: u16) -> Vec<u8> {
        self.checkpoint.layer_slab(&self.setup.spec, layer.into()).as_slice().to_vec()
    }

    /// Returns the first chunk of a resident layer.
    pub fn layer_chunk(&self, layer: u16) -> u32 {
        self.chunk_layout.layers + u32::from(layer) * self.setup.layer_chunks()
    }

    /// Copies bytes into the pool, starting at `chunk`.
    pub fn write(&self, chunk: u32, bytes: &[u8]) {
        self.pool.write(u64::from(chunk) * self.setup.chunk_bytes, bytes);
    }

    /// Returns the mappings of every range to its own chunks.
    pub fn resident(&self) -> Vec<MapOp> {
        let mut ops = Vec::new();
        ops.extend((0..self.chunk_layout.layers).map(|at| MapOp::Map(Address::Global(at), ChunkId(at))));
        for layer in 0..self.setup.spec.layers {
            ops.extend(self.map_layer(layer, self.layer_chunk(layer)));
        }
        ops.extend(self.map_rest());
        ops
    }

    /// Returns the mappings of a layer's range to the chunks from `first` on.
    pub fn map_layer(&self, layer: u16, first: u32) -> Vec<MapOp> {
        let at = |at| MapOp::Map(Address::Layer(LayerId(layer), at), ChunkId(first + at));
        (0..self.setup.layer_chunks()).map(at).collect()
    }

    fn map_rest(&self) -> Vec<MapOp> {
        let kv = |at| MapOp::Map(Address::Kv(KvChunkId(at)), ChunkId(self.chunk_layout.kv + at));
        let activation =
            |at| MapOp::Map(Address::Activation(at), ChunkId(self.chunk_layout.activations + at));
        (0..self.setup.kv_chunks).map(kv).chain((0..self.setup.activation_chunks).map(activation)).collect()
    }

    /// Waits for the next engine and performs the handshake.
    pub fn accept(&self) -> Result<EngineLink, LinkError> {
        let connection = self.listener.as_ref().unwrap().accept(TEST_TIMEOUT)?.expect("an engine connects");
        let shared = SharedMemory {
            pool: self.pool.fd(),
            control: &self.control,
            tables: &self.tables,
            lifetime_lock: self.participant.as_ref().map_or(self.control.fd(), ParticipantHandle::liveness),
        };
        let link = connection.recv_hello()?.send_setup(&self.setup, shared)?.recv_ready(&self.setup)?;
        link.sender.send_chunks(&self.pool.export())?;
        Ok(link)
    }

    /// Waits for the next engine and applies `ops`.
    pub fn attach(&self, ops: &[MapOp]) -> EngineLink {
        let mut link = self.accept().unwrap();
        assert_eq!(remap(&mut link, ops), Ok(()));
        link
    }

    /// Returns a step of one sequence in row 0: `tokens` at `start`, sampled greedily with log-probabilities.
    pub fn step(&mut self, start: u32, tokens: &[u32]) -> Step {
        let id = StepId(self.next_step);
        self.next_step += 1;
        let end = start + tokens.len() as u32;
        let fresh = start.div_ceil(16)..end.div_ceil(16);
        let mut updates = Vec::new();
        if start == 0 {
            updates.push(TableUpdate::Reset { row: RowId(0), tokens: Vec::new() });
        }
        updates.extend(fresh.map(|kv_block| self.kv_block(kv_block)));
        let sampling = Arc::new(Sampling { logprobs: Some(20), ..Sampling::default() });
        let sample = Some(SampleRequest { sampling, prompt_tokens: 0 });
        Step {
            id,
            attempt: 0,
            epoch: 0,
            sequences: vec![SequenceStep { row: RowId(0), start, tokens: tokens.to_vec(), sample }],
            updates,
            generations: Vec::new(),
            kv_generations: Vec::new(),
            activation_limit_bytes: u64::from(self.setup.activation_chunks) * self.setup.chunk_bytes,
        }
    }

    /// Returns the blocks of a KV block, in an order that is neither that of layers nor of KV blocks.
    fn kv_block(&self, kv_block: u32) -> TableUpdate {
        let layers = 0..self.setup.spec.layers;
        let layer_blocks = layers.map(|layer| self.layer_block(kv_block, layer)).collect();
        TableUpdate::KvBlock { row: RowId(0), kv_block, layer_blocks }
    }

    /// Returns the layer-block of a layer in a KV block.
    pub fn layer_block(&self, kv_block: u32, layer: u16) -> LayerBlockId {
        let layers = u32::from(self.setup.spec.layers);
        LayerBlockId(kv_block * layers + layers - 1 - u32::from(layer))
    }

    /// Returns how many layer-blocks a chunk holds.
    pub fn layer_blocks_per_chunk(&self) -> u32 {
        (self.setup.chunk_bytes / self.setup.spec.layer_block_bytes()) as u32
    }

    /// Returns the first byte of a layer-block in the pool, and its bytes.
    pub fn place(&self, layer_block: LayerBlockId) -> (u64, u64) {
        let per = self.layer_blocks_per_chunk();
        let (bytes, chunk) =
            (self.setup.spec.layer_block_bytes(), self.chunk_layout.kv + layer_block.0 / per);
        (u64::from(chunk) * self.setup.chunk_bytes + u64::from(layer_block.0 % per) * bytes, bytes)
    }

    /// Runs a step and returns its result.
    pub fn run(&mut self, link: &mut EngineLink, step: &Step) -> Result<StepDone, String> {
        link.sender.send_step(step, &mut self.tables).unwrap();
        answer(link)
    }

    /// Feeds a prompt in chunks of 7, then decodes greedily. Returns `count` sampled tokens with their
    /// log-probabilities.
    pub fn generate(&mut self, link: &mut EngineLink, prompt: &[u32], count: usize) -> Vec<Sampled> {
        let mut at = 0;
        let mut sampled = Vec::new();
        let mut feed: Vec<u32> = prompt.to_vec();
        while sampled.len() < count {
            let tokens: Vec<u32> = feed.drain(..feed.len().min(7)).collect();
            let step = self.step(at, &tokens);
            let done = self.run(link, &step).unwrap();
            at += tokens.len() as u32;
            if feed.is_empty() {
                feed.push(done.sampled[0].token);
                sampled.extend(done.sampled);
            }
        }
        sampled
    }

    /// Returns the greedy continuation of `prompt` by the independent reference.
    pub fn reference(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let reference =
            Reference { spec: &self.setup.spec, checkpoint: &self.checkpoint, device: rounding() };
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let logits = reference.logits(&tokens);
            let last = logits.last().unwrap();
            let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
            tokens.push(best as u32);
        }
        tokens.split_off(prompt.len())
    }
}

fn rounding() -> Rounding {
    if on_gpu() { Rounding::Gpu } else { Rounding::Cpu }
}

/// Orders remaps and waits for the reply.
pub fn remap(link: &mut EngineLink, ops: &[MapOp]) -> Result<(), String> {
    link.sender.send_remap(ActionId(1), ops).unwrap();
    match link.receiver.recv_within(TEST_TIMEOUT).unwrap() {
        EngineEvent::Applied { .. } => Ok(()),
        EngineEvent::Refused { message, .. } => Err(message),
        other => panic!("{other:?} in answer to a change"),
    }
}

/// Receives the engine's reply to a step.
pub fn answer(link: &mut EngineLink) -> Result<StepDone, String> {
    match link.receiver.recv_within(TEST_TIMEOUT).unwrap() {
        EngineEvent::Done(done) => Ok(done),
        EngineEvent::StepRefused { message, .. } => Err(message),
        other => panic!("{other:?} in answer to a step"),
    }
}

pub fn tokens_of(sampled: &[Sampled]) -> Vec<u32> {
    sampled.iter().map(|one| one.token).collect()
}

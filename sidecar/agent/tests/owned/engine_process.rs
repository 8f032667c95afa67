//! An engine that schedules by itself, as a process of its own: a worker that checks the weights and the KV that each
//! pass reads, and a scheduler that uses the extents that the test names. It obeys lines on its standard input and answers
//! each with one line.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test that started the process")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluice_link::client::scheduler::{
    SchedulerClient, SchedulerIdentity, SchedulerReplies, SchedulerRequest, SchedulerRequests,
};
use sluice_link::client::worker::{WorkerClient, WorkerIdentity, WorkerReplies, WorkerRequest};
use sluice_link::control::{ControlPage, Lease, PassRecord, WaitLimit, WaitResult};
use sluice_link::message::{Demand, Held, KvLayout, Loaded, Resume, Retired};
use sluice_link::vocabulary::{ActionId, Address, KvChunkId, LayerId};
use sluice_memory::{Mapping, Range};

use super::memory::{BLOCK_BYTES, BLOCKS, CHUNK, LAYER_CHUNKS, LAYERS, SOCKET_VAR};

static NEVER: AtomicBool = AtomicBool::new(false);
const LIMIT: Duration = Duration::from_secs(20);
const WAIT: WaitLimit<'_> = WaitLimit { abort: &NEVER, limit: Some(LIMIT) };

/// What both links change. A pass holds it.
struct Engine {
    mapping: Mapping,
    pool: OwnedFd,
    moving: Vec<LayerId>,
    granted: BTreeSet<u32>,
    /// The extents in use, with the word that fills each of their blocks.
    used: BTreeMap<u32, u32>,
    wanted_blocks: u32,
    preempted: u32,
    next_word: u32,
}

type Shared = Arc<Mutex<Engine>>;

fn lock(engine: &Shared) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap()
}

/// The byte that fills a layer's weights.
fn weight_byte(layer: u16) -> u8 {
    0x10 + layer as u8
}

impl Engine {
    /// Returns the bytes of a layer's weights.
    fn weights(&mut self, layer: u16) -> &mut [u8] {
        let start = self.mapping.address(Range::Layer(LayerId(layer)));
        let bytes = (u64::from(LAYER_CHUNKS) * CHUNK) as usize;
        // SAFETY: the layer's chunks are mapped as long as the mapping is not changed, which takes `&mut self`; the
        // sidecar writes them only before `ready` and after `done`.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Returns the words of block `block` of a layer.
    fn block(&mut self, layer: u32, block: u32) -> &mut [u32] {
        let offset = u64::from(layer * BLOCKS + block) * BLOCK_BYTES;
        let at = Address::Kv(KvChunkId((offset / CHUNK) as u32));
        let start = self.mapping.position_ptr(at).unwrap();
        // SAFETY: as in `weights`: a block lies in one chunk, which the caller's extent has.
        unsafe {
            let start = start.add((offset % CHUNK) as usize).cast::<u32>();
            std::slice::from_raw_parts_mut(start, BLOCK_BYTES as usize / 4)
        }
    }

    fn blocks_of(extent: u32) -> std::ops::Range<u32> {
        let blocks = (CHUNK / BLOCK_BYTES) as u32;
        extent * blocks..(extent + 1) * blocks
    }

    /// Takes an extent into use: writes all of its KV.
    fn take(&mut self, extent: u32) {
        let word = self.next_word;
        self.next_word += 1;
        for layer in 0..u32::from(LAYERS) {
            for block in Engine::blocks_of(extent) {
                self.block(layer, block).fill(word);
            }
        }
        self.used.insert(extent, word);
    }

    /// Whether the KV of all extents in use is what was written.
    fn kv_is_whole(&mut self) -> bool {
        let used: Vec<_> = self.used.iter().map(|(extent, word)| (*extent, *word)).collect();
        let mut whole = true;
        for (extent, word) in used {
            for layer in 0..u32::from(LAYERS) {
                for block in Engine::blocks_of(extent) {
                    whole &= self.block(layer, block).iter().all(|found| *found == word);
                }
            }
        }
        whole
    }

    fn held(&self, id: ActionId) -> Held {
        Held {
            id,
            idle: self.idle(),
            wanted_blocks: self.wanted_blocks,
            waiting: u32::from(self.wanted_blocks > 0),
            running: self.used.len() as u32,
        }
    }

    /// Gives idle extents back, then used ones. Returns them, and how many were used.
    fn retire(&mut self, extents: u32) -> (Vec<u32>, u32) {
        let used: Vec<u32> = self.used.keys().copied().filter(|extent| *extent != 0).collect();
        let given: Vec<u32> = self.idle().into_iter().chain(used).take(extents as usize).collect();
        let preempted = given.iter().filter(|one| self.used.remove(one).is_some()).count() as u32;
        self.preempted += preempted;
        given.iter().for_each(|extent| assert!(self.granted.remove(extent)));
        (given, preempted)
    }

    fn resume(&mut self, resume: &Resume) {
        for extent in &resume.withdrawn {
            assert!(!self.used.contains_key(extent), "extent {extent} is in use");
            assert!(self.granted.remove(extent), "extent {extent} was granted");
        }
        for extent in &resume.granted {
            self.granted.insert(*extent);
            let zeros = (0..u32::from(LAYERS)).all(|layer| {
                Engine::blocks_of(*extent).all(|block| self.block(layer, block).iter().all(|word| *word == 0))
            });
            assert!(zeros, "new extent {extent} has zeros");
        }
        let blocks = resume.granted.len() as u32 * Engine::blocks_of(0).len() as u32;
        self.wanted_blocks = self.wanted_blocks.saturating_sub(blocks);
    }

    fn idle(&self) -> Vec<u32> {
        self.granted
            .iter()
            .copied()
            .filter(|extent| *extent != 0 && !self.used.contains_key(extent))
            .collect()
    }
}

/// Runs until the sidecar or the test closes its end.
pub fn run() {
    let path = PathBuf::from(std::env::var_os(SOCKET_VAR).unwrap());
    let (engine, control) = start_worker(&path);
    let identity = SchedulerIdentity {
        build: "test".into(),
        engine: "test 1".into(),
        blocks: BLOCKS,
        block_tokens: 16,
        max_model_len: 32,
    };
    let (client, welcome) = SchedulerClient::connect(&path, identity, LIMIT).unwrap();
    lock(&engine).granted = welcome.setup.granted.iter().copied().collect();
    let (scheduler, gate) = (Arc::new(client.sender), Arc::new(Mutex::new(())));
    let (memory, replies, held) = (engine.clone(), scheduler.clone(), gate.clone());
    std::thread::spawn(move || serve_scheduler(client.receiver, &memory, &replies, &held));
    answer("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["use", numbers @ ..] => set_used(&engine, numbers),
            ["want", blocks] => lock(&engine).wanted_blocks = blocks.parse().unwrap(),
            ["tell"] => tell(&engine, &scheduler),
            ["pass", count, "without", "waits"] => passes(&engine, &control, &gate, count, false),
            ["pass", count] => passes(&engine, &control, &gate, count, true),
            ["state"] => {
                let engine = lock(&engine);
                let granted: Vec<String> = engine.granted.iter().map(u32::to_string).collect();
                let moving = engine.moving.len();
                answer(&format!(
                    "granted {} moving {moving} preempted {}",
                    granted.join(","),
                    engine.preempted
                ));
                continue;
            }
            other => panic!("unknown: {other:?}"),
        }
        answer("done");
    }
}

/// Connects the worker, loads its weights, lays its KV out, and serves its link.
fn start_worker(path: &Path) -> (Shared, Arc<ControlPage>) {
    let identity = WorkerIdentity { build: "test".into(), engine: "test 1".into(), rank: 0, ranks: 1 };
    let (WorkerClient { sender, mut receiver }, welcome) =
        WorkerClient::connect(path, identity, LIMIT).unwrap();
    let (setup, control) = (welcome.setup, Arc::new(welcome.control));
    let engine = Arc::new(Mutex::new(Engine {
        mapping: Mapping::reserve(setup.chunk_bytes, setup.range_sizes()).unwrap(),
        pool: welcome.pool.unwrap(),
        moving: Vec::new(),
        granted: BTreeSet::new(),
        used: BTreeMap::new(),
        wanted_blocks: 0,
        preempted: 0,
        next_word: 1,
    }));
    let first = receiver.recv().unwrap();
    assert!(matches!(first, WorkerRequest::Remap { .. }), "a worker gets its weights first");
    obey_worker(&engine, &sender, first);
    (0..LAYERS).for_each(|layer| lock(&engine).weights(layer).fill(weight_byte(layer)));
    let layer_bytes = vec![u64::from(LAYER_CHUNKS) * CHUNK; usize::from(LAYERS)];
    sender.send_loaded(Loaded { layer_bytes }).unwrap();
    assert!(matches!(receiver.recv().unwrap(), WorkerRequest::Captured));
    let layout = KvLayout {
        layers: LAYERS.into(),
        blocks: BLOCKS,
        block_bytes: BLOCK_BYTES,
        layer_stride_bytes: u64::from(BLOCKS) * BLOCK_BYTES,
        block_stride_bytes: BLOCK_BYTES,
        block_tokens: 16,
    };
    sender.send_kv_layout(layout).unwrap();
    assert!(matches!(receiver.recv().unwrap(), WorkerRequest::KvAccepted(_)));
    let memory = engine.clone();
    std::thread::spawn(move || {
        while let Ok(request) = receiver.recv() {
            obey_worker(&memory, &sender, request);
        }
        // As the kernel ends an engine whose sidecar is gone.
        std::process::exit(3);
    });
    (engine, control)
}

/// Obeys the orders of the scheduler's link. Passes take the gate: none begins between `Hold` and `Resume`.
fn serve_scheduler(
    mut receiver: SchedulerRequests,
    engine: &Shared,
    replies: &SchedulerReplies,
    gate: &Mutex<()>,
) {
    let mut held = None;
    while let Ok(request) = receiver.recv() {
        match request {
            SchedulerRequest::Hold { id } => {
                held = Some(gate.lock().unwrap());
                replies.send_held(lock(engine).held(id)).unwrap();
            }
            SchedulerRequest::Retire { id, extents } => {
                let (extents, preempted) = lock(engine).retire(extents);
                replies.send_retired(Retired { id, extents, preempted }).unwrap();
            }
            SchedulerRequest::Resume(resume) => {
                lock(engine).resume(&resume);
                held = None;
            }
            SchedulerRequest::Bye => break,
        }
    }
    drop(held);
    std::process::exit(3);
}

fn answer(text: &str) {
    println!("engine: {text}");
    std::io::stdout().flush().unwrap();
}

fn obey_worker(engine: &Shared, replies: &WorkerReplies, request: WorkerRequest) {
    let mut engine = lock(engine);
    let Engine { mapping, pool, moving, .. } = &mut *engine;
    match request {
        WorkerRequest::Remap { id, ops } => {
            mapping.apply_all(pool.as_fd(), &ops).unwrap();
            replies.send_applied(id).unwrap();
        }
        WorkerRequest::Zero { id, positions } => {
            for position in positions {
                let start = mapping.position_ptr(Address::Kv(position)).unwrap();
                // SAFETY: the position is mapped, and no pass runs.
                unsafe { start.write_bytes(0, CHUNK as usize) };
            }
            replies.send_applied(id).unwrap();
        }
        WorkerRequest::Moving(order) => {
            *moving = order.layers;
            replies.send_applied(order.id).unwrap();
        }
        other => panic!("not expected: {other:?}"),
    }
}

fn set_used(engine: &Shared, numbers: &[&str]) {
    let mut engine = lock(engine);
    let wanted: BTreeSet<u32> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    engine.used.retain(|extent, _| wanted.contains(extent));
    for extent in wanted {
        if engine.granted.contains(&extent) && !engine.used.contains_key(&extent) {
            engine.take(extent);
        }
    }
}

fn tell(engine: &Shared, scheduler: &SchedulerReplies) {
    let engine = lock(engine);
    let (wanted_blocks, waiting) = (engine.wanted_blocks, u32::from(engine.wanted_blocks > 0));
    let running = engine.used.len() as u32;
    scheduler.send_demand(Demand { wanted_blocks, waiting, running, blocked: Vec::new() }).unwrap();
}

/// Runs passes: each reads all weights and all KV in use.
fn passes(engine: &Shared, control: &ControlPage, gate: &Mutex<()>, count: &str, waits: bool) {
    for _ in 0..count.parse().unwrap() {
        let _runs = gate.lock().unwrap();
        let mut engine = lock(engine);
        let pass = control.begin_pass();
        let mut is_right = true;
        for layer in (0..LAYERS).map(LayerId) {
            let is_moving = engine.moving.contains(&layer);
            let lease = is_moving.then(|| control.wait_lease(layer, pass, WAIT).unwrap());
            if let (Some(Lease::Moving(generation)), true) = (lease, waits) {
                let reached = control.wait_ready(layer, generation, WAIT).unwrap();
                assert_eq!(reached, WaitResult::Reached, "{layer:?} in pass {pass}");
            }
            assert!(!matches!(lease, Some(Lease::Ended(_))), "{layer:?} in pass {pass}: {lease:?}");
            is_right &= engine.weights(layer.0).iter().all(|byte| *byte == weight_byte(layer.0));
            if let Some(Lease::Moving(generation)) = lease {
                control.publish_done(layer, generation).unwrap();
            }
        }
        let whole = engine.kv_is_whole();
        control.end_pass(PassRecord { pass, total_ns: 4_000_000, stall_ns: 0, tokens: 1, sequences: 1 });
        if !is_right || !whole {
            answer(&format!("wrong weights {} kv {}", !is_right, !whole));
            std::process::exit(4);
        }
        drop(engine);
        std::thread::sleep(Duration::from_millis(1));
    }
}

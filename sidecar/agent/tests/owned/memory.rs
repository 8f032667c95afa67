//! The memory of an engine that schedules by itself, with real processes: memory, links and block budget of the sidecar
//! here, and an engine that checks all that it reads in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails as it should")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_agent::clock::Clock;
use sluice_agent::engine_loop::backend::ControlPageGate;
use sluice_agent::owned_engine::acceptor::EngineAcceptor;
use sluice_agent::owned_engine::engine::OwnedEngine;
use sluice_agent::owned_engine::held_fills::HeldFills;
use sluice_agent::owned_engine::memory_loop::{LoopStatus, MemoryLoop};
use sluice_agent::owned_engine::message::LoopMessage;
use sluice_agent::owned_engine::worker_connection::WorkerConnection;
use sluice_link::control::ControlPage;
use sluice_link::message::{Device, WorkerSetup};
use sluice_link::server::Listener;
use sluice_memory::{DeviceMemory, HostWeightsBuilder, MemoryOptions, RangeSizes, UnsharedQuota};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::{Bounds, Params};
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::NoPeers;
use sluice_scheduler::TimeSharing;
use sluice_scheduler::block_budget::{BudgetDriver, BudgetEvent, BudgetScheduler};

pub const SOCKET_VAR: &str = "SLUICE_TEST_OWNED_SOCKET";
pub const LAYERS: u16 = 4;
pub const CHUNK: u64 = 64 << 10;
/// Chunks of each layer's weights.
pub const LAYER_CHUNKS: u32 = 4;
/// Two blocks fill a chunk, so an extent has two blocks and one chunk in each layer.
pub const BLOCK_BYTES: u64 = CHUNK / 2;
pub const BLOCKS: u32 = 48;
const EXTENTS: u32 = BLOCKS / 2;
/// Weights take 17 chunks, and KV has room for eight extents.
const CAPACITY: u32 = 17 + 4 * 8;
const LIMIT: Duration = Duration::from_secs(20);

/// The sizes of the model and of the GPU.
fn geometry() -> Geometry {
    Geometry {
        chunk_bytes: CHUNK,
        capacity_chunks: CAPACITY,
        global_bytes: CHUNK,
        slab_bytes: vec![u64::from(LAYER_CHUNKS) * CHUNK; usize::from(LAYERS)],
        layer_block_bytes: CHUNK,
        activation: ActivationCost::default(),
        staging_chunks: 0,
    }
}

fn options() -> MemoryOptions {
    let ranges = RangeSizes {
        global_chunks: 1,
        layer_chunks: vec![LAYER_CHUNKS; usize::from(LAYERS)],
        kv_chunks: CAPACITY,
        activation_chunks: 0,
        staging_chunks: 0,
    };
    MemoryOptions {
        geometry: geometry(),
        ranges,
        poison: true,
        copy_threads: 1,
        link_bytes_per_s: None,
        to_host_bytes_per_s: None,
        host_kv_bytes: 64 * CHUNK,
        quota: Arc::new(UnsharedQuota),
    }
}

/// The sidecar's part.
struct Sidecar {
    folder: tempfile::TempDir,
    inbox: Sender<LoopMessage>,
    status: Arc<Mutex<LoopStatus>>,
    closed: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Sidecar {
    fn start(policy: PolicyName) -> Sidecar {
        let (geometry, options) = (geometry(), options());
        let weights = HostWeightsBuilder::new(geometry.global_bytes, &geometry.slab_bytes).unwrap();
        let control = Arc::new(ControlPage::create_with_passes(LAYERS).unwrap());
        let (inbox, messages) = channel();
        let (connection, wake) = (WorkerConnection::default(), inbox.clone());
        let notify = Arc::new(move || drop(wake.send(LoopMessage::Wake)));
        let gate = Arc::new(ControlPageGate(control.clone()));
        let engine = Box::new(connection.clone());
        let memory =
            DeviceMemory::new(options, Arc::new(weights.uncaptured()), gate, engine, notify).unwrap();
        let pool = memory.pool_file().unwrap().try_clone_to_owned().unwrap();
        let params = Params {
            policy,
            max_model_tokens: 16,
            guaranteed_kv_bytes: 2 * u64::from(LAYERS) * CHUNK,
            host_kv_bytes: 64 * CHUNK,
            link_bytes_per_second: 1 << 40,
            ..Params::default()
        };
        let manager = MemoryManager::new(params, geometry).unwrap();
        let scheduler = BudgetScheduler::new(TimeSharing::Exclusive, None, manager);
        let (clock, port) = (Clock::start(), OwnedEngine::new(connection, control.clone(), LAYERS, CHUNK));
        let driver =
            BudgetDriver::start(clock.now(), scheduler, HeldFills::new(memory), port, Box::new(NoPeers));
        let kv_chunks = EXTENTS * u32::from(LAYERS);
        let memory_loop =
            MemoryLoop::new(driver, (messages, inbox.clone()), (clock, control.clone()), (kv_chunks, 32));
        let (status, closed) = (memory_loop.status(), Arc::new(AtomicBool::new(false)));
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("engine.sock")).unwrap();
        let setup = WorkerSetup {
            device: Device::Host,
            chunk_bytes: CHUNK,
            capacity_chunks: CAPACITY,
            layer_chunks: vec![LAYER_CHUNKS; usize::from(LAYERS)],
            kv_chunks,
        };
        let liveness = rustix::fs::memfd_create("life", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let acceptor = EngineAcceptor::new(
            listener,
            (setup, Some(pool)),
            (control, liveness),
            inbox.clone(),
            closed.clone(),
        );
        let threads =
            vec![std::thread::spawn(move || memory_loop.run()), std::thread::spawn(move || acceptor.run())];
        Sidecar { folder, inbox, status, closed, threads }
    }

    fn status(&self) -> LoopStatus {
        *self.status.lock().unwrap()
    }

    fn wait_until(&self, what: &str, holds: impl Fn(LoopStatus) -> bool) {
        let begun = Instant::now();
        while !holds(self.status()) {
            assert!(begun.elapsed() < LIMIT, "in vain: {what}; {:?}", self.status());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn push(&self, event: BudgetEvent) {
        self.inbox.send(LoopMessage::Event(Box::new(event))).unwrap();
    }

    fn set_share(&self, share_chunks: u32) {
        self.push(BudgetEvent::Bounds(Bounds { share_chunks, remap_cap_permille: 600 }));
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = self.inbox.send(LoopMessage::Stop);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The engine's process.
struct Engine {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Engine {
    fn start(sidecar: &Sidecar) -> Engine {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "owned::memory::engine_as_a_process",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(SOCKET_VAR, sidecar.folder.path().join("engine.sock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut engine = Engine { process, input, output };
        assert_eq!(engine.answer(), "ready");
        engine
    }

    fn answer(&mut self) -> String {
        for line in self.output.by_ref() {
            if let Some(answer) = line.unwrap().split_once("engine: ").map(|(_, answer)| answer.to_owned()) {
                return answer;
            }
        }
        panic!("the engine has ended")
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.answer()
    }

    /// Gives the engine this use of extents and this want, and lets it report.
    fn demand(&mut self, used: &str, wanted: u32) {
        assert_eq!(self.say(&format!("use {used}")), "done");
        assert_eq!(self.say(&format!("want {wanted}")), "done");
        assert_eq!(self.say("tell"), "done");
    }

    /// Waits until its scheduler has this number of extents.
    fn wait_for_extents(&mut self, count: usize) {
        let begun = Instant::now();
        loop {
            let state = self.say("state");
            let granted = state.split_whitespace().nth(1).map_or(0, |list| list.split(',').count());
            if granted >= count {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "in vain: {count} extents; {state}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn pass(&mut self, count: u32) {
        assert_eq!(self.say(&format!("pass {count}")), "done");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "a child process of the tests below"]
fn engine_as_a_process() {
    super::engine_process::run();
}

#[test]
fn weights_move_and_kv_grows_under_passes_that_check_every_byte() {
    let sidecar = Sidecar::start(PolicyName::Oneiros);
    let mut engine = Engine::start(&sidecar);
    engine.wait_for_extents(2);
    engine.pass(5);
    engine.demand("0 1", 12);
    engine.wait_for_extents(8);
    engine.demand("0 1 2 3 4 5 6 7", 4);
    sidecar.wait_until("layers move", |status| status.moving_layers >= 2 && status.granted_blocks > 16);
    engine.pass(30);
    engine.demand("0 1 2 3 4 5 6 7 8", 0);
    engine.pass(30);
    let state = engine.say("state");
    assert!(state.ends_with("preempted 0"), "{state}");
    engine.demand("0 1", 0);
    let begun = Instant::now();
    while sidecar.status().moving_layers > 0 {
        assert!(begun.elapsed() < LIMIT, "the layers come back: {:?}", sidecar.status());
        engine.pass(20);
    }
    engine.pass(5);
}

#[test]
fn engine_that_skips_its_waits_reads_other_weights() {
    let sidecar = Sidecar::start(PolicyName::Oneiros);
    let mut engine = Engine::start(&sidecar);
    engine.pass(5);
    engine.demand("0 1", 12);
    engine.wait_for_extents(8);
    engine.demand("0 1 2 3 4 5 6 7", 4);
    sidecar.wait_until("layers move", |status| status.moving_layers >= 2);
    let said = engine.say("pass 200 without waits");
    assert_eq!(said, "wrong weights true kv false");
}

#[test]
fn smaller_share_preempts_and_the_rest_of_kv_stays_whole() {
    let sidecar = Sidecar::start(PolicyName::Recompute);
    let mut engine = Engine::start(&sidecar);
    engine.demand("0 1", 12);
    engine.wait_for_extents(8);
    engine.demand("0 1 2 3 4 5 6 7", 0);
    engine.pass(3);
    sidecar.set_share(CAPACITY - 4 * 4);
    sidecar.wait_until("four extents are given back", |status| status.granted_blocks <= 8);
    engine.pass(5);
    assert!(sidecar.status().preemptions > 0);
    sidecar.set_share(CAPACITY);
    engine.demand("0 1 2 3", 8);
    engine.wait_for_extents(8);
    engine.pass(5);
}

#[test]
fn killed_engine_gives_its_kv_back_and_the_next_one_has_the_weights() {
    let sidecar = Sidecar::start(PolicyName::Oneiros);
    let mut engine = Engine::start(&sidecar);
    engine.pass(5);
    for round in 1..=3 {
        engine.demand("0 1", 12);
        engine.wait_for_extents(8);
        engine.demand("0 1 2 3 4 5 6 7", 4);
        sidecar.wait_until("layers move", |status| status.moving_layers >= 2);
        engine.pass(3);
        drop(engine);
        sidecar.wait_until("its loss is confirmed", |status| status.engine_losses >= round);
        engine = Engine::start(&sidecar);
        engine.pass(5);
    }
}

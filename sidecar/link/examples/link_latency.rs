//! Measures the round trip of one step over the link, between two processes. The sidecar writes the tables and sends
//! the step; an engine that computes nothing reads it and replies. `cargo run --release -p sluice-link --example
//! link_latency`
//!
//! Prints the median and the 99th percentile for a small command (one sequence) and for a real step (16 sequences that
//! decode on a model of 32 layers, about 700 tokens each), and whether the median is within the budget of 50 us. With
//! `-- --json` it prints one JSON object per result. It also prints the floor of this machine: the round trip of a bare
//! packet, which is included in the value. The budget applies to the whole value.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_common::statistics::percentile;
use sluice_link::client::{EngineRequest, SidecarLink};
use sluice_link::control::ControlPage;
use sluice_link::frame::HEADER_BYTES;
use sluice_link::message::{Device, EngineSetup, Faults, Message};
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};
use sluice_link::server::{EngineEvent, EngineLink, Listener, SharedMemory, step_order};
use sluice_link::socket::wait_readable;
use sluice_link::tables::{TableShape, TableWriter};
use sluice_link::vocabulary::*;
use sluice_ports::compute::{SequenceStep, Step, TableUpdate};

const LIMIT_NS: u64 = 50_000;
const WARM_UP: usize = 2_000;
const ROUNDS: usize = 20_000;
const LAYERS: u16 = 32;
const MAX_TOKENS: u32 = 8192;
/// About the time in which an engine reads 16 sequences; the sidecar sleeps at least as long.
const READING: Duration = Duration::from_micros(10);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let ended = match arguments.get(1) {
        Some(flag) if flag == "--json" => sidecar(true),
        Some(flag) if flag == "--echo" => echo().map(|()| true),
        Some(path) => engine(Path::new(path)).map(|()| true),
        None => sidecar(false),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Attaches and replies to each step at once, after reading the same data as a real engine.
fn engine(path: &Path) -> Outcome<()> {
    let mut link = SidecarLink::connect(path)?;
    let welcome = link.exchange_hello("latency")?;
    link.send_ready(welcome.setup.layout().digest(), ActivationCost::default())?;
    let (mut tokens, mut layer_blocks) = (Vec::new(), Vec::new());
    while let EngineRequest::Step(order) = link.recv()? {
        tokens.clear();
        layer_blocks.clear();
        let mut sampled = Vec::with_capacity(order.sequences.len());
        for sequence in &order.sequences {
            let end = sequence.start + sequence.count;
            welcome.tables.history(
                order.parity,
                sequence.row,
                sequence.start,
                sequence.count,
                &mut tokens,
            )?;
            welcome.tables.layer_blocks(
                order.parity,
                sequence.row,
                end.div_ceil(BLOCK_TOKENS),
                &mut layer_blocks,
            )?;
            sampled.push(Sampled { row: sequence.row, token: 1, logprobs: None });
        }
        let times = vec![1_000_000; usize::from(LAYERS)];
        let (id, attempt, total_ns) = (order.id, order.attempt, 32_000_000);
        let (layer_ns, stall_ns, kv_stall_ns) = (times.clone(), times.clone(), times);
        let failed = Vec::new();
        link.send_done(StepDone { id, attempt, sampled, failed, layer_ns, stall_ns, kv_stall_ns, total_ns })?;
    }
    Ok(())
}

fn setup() -> EngineSetup {
    let spec = ModelSpec {
        family: Family::Llama,
        dtype: Dtype::Bf16,
        vocab: 128_256,
        hidden: 4096,
        intermediate: 14_336,
        layers: LAYERS,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        max_positions: 131_072,
        norm_eps: 1e-5,
        rope_theta: 500_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: false,
        attention_bias: false,
        mlp_bias: false,
    };
    EngineSetup {
        spec,
        device: Device::Host,
        chunk_bytes: 1 << 21,
        capacity_chunks: 1,
        kv_chunks: 1024,
        activation_chunks: 64,
        staging_chunks: 1,
        max_rows: 64,
        // As the sidecar sizes tables for a context of this many tokens: one KV block more than they fill. A power of two
        // would map all layers of a row to the same few cache sets.
        max_kv_blocks: MAX_TOKENS / BLOCK_TOKENS + 1,
        max_history: MAX_TOKENS,
        chunk_tokens: 32,
        threads: 1,
        faults: Faults::default(),
    }
}

fn pool() -> Outcome<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, 1 << 21)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Runs the measurement. Returns `true` if both medians are within the limit.
fn sidecar(json: bool) -> Outcome<bool> {
    let folder = std::env::temp_dir().join(format!("sluice-link-latency-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let path = folder.join("engine.sock");
    let listener = Listener::bind(&path)?;
    let mut child = Command::new(std::env::current_exe()?).arg(&path).spawn()?;
    let (setup, pool) = (setup(), pool()?);
    let control = ControlPage::create(LAYERS)?;
    let mut tables = TableWriter::create(TableShape::of(&setup))?;
    let connection = listener.accept(Duration::from_secs(10))?.ok_or("the engine does not connect")?;
    let shared = SharedMemory {
        pool: Some(pool.as_fd()),
        control: &control,
        tables: &tables,
        lifetime_lock: pool.as_fd(),
    };
    let mut link = connection.recv_hello()?.send_setup(&setup, shared)?.recv_ready(&setup)?;
    let small = measure("1 decode", &mut link, &mut tables, 1)?.print(json, floor_ns(Duration::ZERO)?);
    let real = measure("16 decodes", &mut link, &mut tables, 16)?.print(json, floor_ns(READING)?);
    link.sender.send_bye()?;
    child.wait()?;
    drop(listener);
    std::fs::remove_dir(&folder)?;
    Ok(small && real)
}

/// Round-trip times of one kind of step.
struct LatencyResult {
    name: &'static str,
    command_bytes: usize,
    p50_ns: u64,
    p99_ns: u64,
}

impl LatencyResult {
    /// Prints value, limit and result; returns `true` if the value is within the limit.
    fn print(&self, json: bool, floor_ns: u64) -> bool {
        let LatencyResult { name, command_bytes: bytes, .. } = self;
        let us = |ns: u64| ns as f64 / 1e3;
        let (p50, p99, limit, floor) = (us(self.p50_ns), us(self.p99_ns), us(LIMIT_NS), us(floor_ns));
        let passed = self.p50_ns <= LIMIT_NS;
        if json {
            let detail = format!(r#"{{"p99_us": {p99}, "command_bytes": {bytes}, "floor_us": {floor}}}"#);
            println!(
                r#"{{"name": "round trip of a step, {name}, median", "value": {p50}, "unit": "us", "limit": {limit}, "passed": {passed}, "detail": {detail}}}"#
            );
            return passed;
        }
        let verdict = if passed { "pass" } else { "FAIL" };
        println!(
            "{name}, command of {bytes} bytes: p50 {p50:.1} us, p99 {p99:.1} us, limit on p50 {limit:.0} us: {verdict} \
             (floor of this machine, a bare packet there and back: p50 {floor:.1} us)"
        );
        passed
    }
}

fn measure(
    name: &'static str,
    link: &mut EngineLink,
    tables: &mut TableWriter,
    rows: u32,
) -> Outcome<LatencyResult> {
    let mut times_ns = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let step = step(round as u32, rows);
        let begun = Instant::now();
        link.sender.send_step(&step, tables)?;
        let EngineEvent::Done(done) = link.receiver.recv()? else { return Err("no Done".into()) };
        let took_ns = begun.elapsed().as_nanos() as u64;
        assert_eq!((done.id, done.sampled.len()), (step.id, rows as usize));
        if round >= WARM_UP {
            times_ns.push(took_ns);
        }
    }
    let [p50_ns, p99_ns] = [500, 990].map(|of| percentile(&mut times_ns, of).expect("there are rounds"));
    let order = Message::Step(step_order(&step(WARM_UP as u32, rows), 0));
    let command_bytes = HEADER_BYTES + order.encode().len();
    Ok(LatencyResult { name, command_bytes, p50_ns, p99_ns })
}

/// Returns a step that decodes `rows` sequences, at positions that start a new block every 16 rounds.
fn step(round: u32, rows: u32) -> Step {
    let start = 512 + round % 512;
    let sampling = Arc::new(Sampling::default());
    let sequence = |row| SequenceStep {
        row: RowId(row),
        start,
        tokens: vec![round % 1000],
        sample: Some(SampleRequest { sampling: Arc::clone(&sampling), prompt_tokens: 512 }),
    };
    let kv_block = |row, kv_block: u32| {
        let first = (row * 64 + kv_block) * u32::from(LAYERS);
        let layer_blocks = (first..first + u32::from(LAYERS)).map(LayerBlockId).collect();
        TableUpdate::KvBlock { row: RowId(row), kv_block, layer_blocks }
    };
    let new = if round == 0 { 0..64 } else { start / 16..start / 16 + u32::from(start.is_multiple_of(16)) };
    Step {
        id: StepId(u64::from(round)),
        attempt: 0,
        epoch: 0,
        sequences: (0..rows).map(sequence).collect(),
        updates: (0..rows).flat_map(|row| new.clone().map(move |at| kv_block(row, at))).collect(),
        generations: Vec::new(),
        kv_generations: Vec::new(),
        activation_limit_bytes: 0,
    }
}

/// Returns the machine's own share: the median round trip of a bare packet over the same kind of socket, to a process
/// that polls for it and back to a process that sleeps. The reply is delayed by `hold`, which is not counted: waking a
/// core costs more the longer it has slept.
fn floor_ns(hold: Duration) -> Outcome<u64> {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut child = Command::new(std::env::current_exe()?).arg("--echo").stdin(far).spawn()?;
    let (order, mut answer) = ((hold.as_nanos() as u64).to_le_bytes(), [0; 8]);
    let mut times_ns = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let begun = Instant::now();
        send(&near, &order, SendFlags::NOSIGNAL)?;
        recv(&near, &mut answer, RecvFlags::empty())?;
        if round >= WARM_UP {
            times_ns.push(begun.elapsed().saturating_sub(hold).as_nanos() as u64);
        }
    }
    drop(near);
    child.wait()?;
    Ok(percentile(&mut times_ns, 500).expect("there are rounds"))
}

/// How long the other end polls for a packet, as the link's engine does.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// The other end of [`floor_ns`], on standard input: replies to each packet after the nanoseconds that it contains.
fn echo() -> Outcome<()> {
    use rustix::net::{RecvFlags, SendFlags, recv, send};
    let socket = std::io::stdin();
    let mut packet = [0; 8];
    loop {
        let begun = Instant::now();
        while begun.elapsed() < SPIN_TIME && !wait_readable(socket.as_fd(), Duration::ZERO)? {}
        if recv(&socket, &mut packet, RecvFlags::empty())?.1 == 0 {
            return Ok(());
        }
        let (got, hold) = (Instant::now(), Duration::from_nanos(u64::from_le_bytes(packet)));
        while got.elapsed() < hold {
            std::hint::spin_loop();
        }
        send(&socket, &packet, SendFlags::NOSIGNAL)?;
    }
}

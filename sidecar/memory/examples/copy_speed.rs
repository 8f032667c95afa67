//! Measures the speed of fills per size class against the machine's memcpy in the same run: at
//! least 90 % of the link's measured peak. Prints one line per class: `value`, `limit`, `pass` or `fail`;
//! exits with 1 if a class fails. With `-- --json` each class is one JSON object.
//!
//! `cargo run --release -p sluice-memory --example copy_speed`

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sluice_memory::{
    DeviceMemory, EngineConnection, HostWeightsBuilder, LayerGate, MemoryOptions, RangeSizes, Slab,
};
use sluice_policy::action::{Action, Fill, FillTarget, MapOp, Work};
use sluice_policy::event::Outcome;
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{ActionId, ChunkId, Generation, LayerId, Nanos};
use sluice_policy::reason::Reason;
use sluice_ports::Memory;

/// Bytes of a chunk and of a slab.
const CLASSES: [(u64, u64); 6] = [
    (64 << 10, 1 << 20),
    (64 << 10, 16 << 20),
    (2 << 20, 4 << 20),
    (2 << 20, 16 << 20),
    (2 << 20, 128 << 20),
    (2 << 20, 512 << 20),
];
/// Minimum number of interleaved pairs of a fill and a memcpy. The best of each counts, as an estimate of
/// what the machine can do.
const MIN_PAIRS: usize = 12;
/// Bytes copied per class, so that small slabs are measured more often.
const CLASS_BYTES: u64 = 512 << 20;
/// Minimum share of the peak.
const LIMIT_PERMILLE: f64 = 900.0;

fn main() -> Result<ExitCode> {
    let json = std::env::args().any(|arg| arg == "--json");
    if !json {
        println!("chunk_kib slab_mib fill_gb_per_s memcpy_gb_per_s value_permille limit_permille verdict");
    }
    let mut failed = 0;
    for (chunk_bytes, slab_bytes) in CLASSES {
        let (fill, peak) = measure(chunk_bytes, slab_bytes)?;
        let permille = fill / peak * 1000.0;
        let passed = permille >= LIMIT_PERMILLE;
        failed += u32::from(!passed);
        let (kib, mib) = (chunk_bytes >> 10, slab_bytes >> 20);
        if json {
            let name = format!("copy of {mib} MiB into chunks of {kib} KiB, share of memcpy");
            let limit = format!(r#""limit": {LIMIT_PERMILLE:.0}, "at_least": true, "passed": {passed}"#);
            let detail = format!(r#"{{"fill_gb_per_s": {fill:.2}, "memcpy_gb_per_s": {peak:.2}}}"#);
            println!(
                r#"{{"name": "{name}", "value": {permille:.0}, "unit": "permille", {limit}, "detail": {detail}}}"#
            );
            continue;
        }
        let verdict = if passed { "pass" } else { "fail" };
        println!("{kib} {mib} {fill:.2} {peak:.2} {permille:.0} {LIMIT_PERMILLE:.0} {verdict}");
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Returns the best GB/s of a fill and of a memcpy of the same size.
fn measure(chunk_bytes: u64, slab_bytes: u64) -> Result<(f64, f64)> {
    let mut bench = Bench::new(chunk_bytes, slab_bytes)?;
    // Allocate both buffers as the host weights allocate slabs: prefaulted, with huge pages where allowed.
    let mut source = HostWeightsBuilder::new(slab_bytes, &[])?;
    source.slab_mut(Slab::Global).fill(7);
    let source = source.freeze()?;
    let source = source.slab(Slab::Global).context("the source has a global slab")?;
    let mut target = HostWeightsBuilder::new(slab_bytes, &[])?;
    let (mut fill, mut peak) = (Duration::MAX, Duration::MAX);
    for _ in 0..MIN_PAIRS.max((CLASS_BYTES / slab_bytes) as usize) {
        fill = fill.min(bench.fill()?);
        let target = target.slab_mut(Slab::Global);
        let begun = Instant::now();
        target.copy_from_slice(source);
        peak = peak.min(begun.elapsed());
        std::hint::black_box(target);
    }
    let rate = |time: Duration| slab_bytes as f64 / time.as_secs_f64() / 1e9;
    Ok((rate(fill), rate(peak)))
}

/// A host memory with one layer and no engine.
struct Bench {
    memory: DeviceMemory,
    wakes: Receiver<()>,
    chunks: Vec<ChunkId>,
    orders: u64,
}

impl Bench {
    fn new(chunk_bytes: u64, slab_bytes: u64) -> Result<Bench> {
        let chunks: Vec<_> = (0..slab_bytes.div_ceil(chunk_bytes) as u32).map(ChunkId).collect();
        let geometry = Geometry {
            chunk_bytes,
            capacity_chunks: chunks.len() as u32,
            global_bytes: 0,
            slab_bytes: vec![slab_bytes],
            layer_block_bytes: chunk_bytes,
            activation: ActivationCost::default(),
            staging_chunks: 0,
        };
        let ranges = RangeSizes { layer_chunks: vec![chunks.len() as u32], ..RangeSizes::default() };
        let mut master = HostWeightsBuilder::new(0, &geometry.slab_bytes)?;
        master.slab_mut(Slab::Layer(LayerId(0))).fill(3);
        let options = MemoryOptions {
            geometry,
            ranges,
            poison: false,
            copy_threads: 1,
            link_bytes_per_s: None,
            to_host_bytes_per_s: None,
            host_kv_bytes: 0,
            quota: Arc::new(sluice_memory::UnsharedQuota),
        };
        let (wake, wakes) = channel();
        let notify = Arc::new(move || _ = wake.send(()));
        let memory = DeviceMemory::new(
            options,
            Arc::new(master.freeze()?),
            Arc::new(OpenGate),
            Box::new(NoEngine),
            notify,
        )?;
        let mut bench = Bench { memory, wakes, chunks: chunks.clone(), orders: 0 };
        bench.run(Work::Create(chunks))?;
        Ok(bench)
    }

    fn fill(&mut self) -> Result<Duration> {
        let target = FillTarget::Resident(LayerId(0));
        let generation = Generation(self.orders);
        self.run(Work::Fill(Fill { target, generation, after: None, chunks: self.chunks.clone() }))
    }

    fn run(&mut self, work: Work) -> Result<Duration> {
        self.orders += 1;
        let action = Action { id: ActionId(self.orders), work, reason: Reason::Load, due: None };
        self.memory.submit(Nanos(0), action);
        loop {
            if let Some(completion) = self.memory.poll(Nanos(0)) {
                let Outcome::Done { duration_ns, .. } = completion.outcome else {
                    bail!("an order ended as {:?}", completion.outcome);
                };
                return Ok(Duration::from_nanos(duration_ns));
            }
            self.wakes.recv_timeout(Duration::from_secs(60)).context("no completion within a minute")?;
        }
    }
}

/// A gate without readers, so no fill waits.
struct OpenGate;

impl LayerGate for OpenGate {
    fn is_done(&self, _: LayerId, _: Generation) -> bool {
        true
    }

    fn wait_done(&self, _: LayerId, _: Generation, _: Duration) -> bool {
        true
    }

    fn publish_ready(&self, _: Option<LayerId>, _: Generation) {}

    fn is_kv_done(&self, _: LayerId, _: Generation) -> bool {
        true
    }

    fn wait_kv_done(&self, _: LayerId, _: Generation, _: Duration) -> bool {
        true
    }

    fn publish_kv_ready(&self, _: LayerId, _: Generation) {}
}

/// A connection without an engine.
struct NoEngine;

impl EngineConnection for NoEngine {
    fn remap(&mut self, _: ActionId, _: &[MapOp]) -> bool {
        false
    }
}

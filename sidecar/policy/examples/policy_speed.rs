//! Measures a step's decisions: `prepare`, `begin`, `on_tokens_computed` and `finish` for a decode step of a model of
//! 80 layers, with all layers resident and with 24 layers moving. Copies complete between steps and are not counted.
//!
//! Run with `cargo run --release -p sluice-policy --example policy_speed`. Prints the median, the limit and pass or
//! fail; `-- --json` prints each result as one JSON object.

use std::process::ExitCode;
use std::time::Instant;

use sluice_common::statistics::percentile;
use sluice_policy::action::Action;
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{Admission, MemoryManager, Prepared, StepNeed, StepTimes};
use sluice_policy::params::{ForcedRemap, Params};

const LIMIT_NS: u64 = 20_000;
const LAYERS: usize = 80;
const STEPS: u64 = 4_000;
const NOW: Nanos = Nanos(0);

/// 80 layers of 64 MiB, blocks of 64 KiB, chunks of 2 MiB, 16 GiB of KV.
fn manager(forced: Option<ForcedRemap>) -> MemoryManager {
    let geometry = Geometry {
        chunk_bytes: 2 << 20,
        capacity_chunks: 80 * 32 + 8192 + 600,
        global_bytes: 512 << 20,
        slab_bytes: vec![64 << 20; LAYERS],
        layer_block_bytes: 64 << 10,
        activation: ActivationCost {
            fixed_bytes: 64 << 20,
            stream_per_token_bytes: 64 << 10,
            ..Default::default()
        },
        staging_chunks: 4,
    };
    let params = Params { forced, max_model_tokens: 4096, guaranteed_kv_bytes: 4 << 30, ..Params::default() };
    MemoryManager::new(params, geometry).expect("a tenant that fits")
}

fn settle(manager: &mut MemoryManager, out: &mut Vec<Action>) {
    while !out.is_empty() {
        let actions = std::mem::take(out);
        for action in actions {
            let outcome = Outcome::Done { bytes: 64 << 20, duration_ns: 1_000_000 };
            manager.complete(NOW, &Completion { id: action.id, outcome }, out);
        }
    }
}

/// Returns the decision time of each step, nanoseconds, sorted.
fn measure(sequences: u32, forced: Option<ForcedRemap>) -> Vec<u64> {
    let mut manager = manager(forced);
    let mut out = Vec::new();
    manager.start(NOW, &mut out);
    settle(&mut manager, &mut out);
    assert!(manager.status().is_loaded(), "loaded");
    let requests: Vec<RequestId> = (0..u64::from(sequences)).map(RequestId).collect();
    // Lengths differ, so that KV blocks fill up in different steps.
    requests.iter().for_each(|id| {
        open(&mut manager, *id, id.0, &mut out);
    });
    let mut lengths: Vec<u32> = (0..sequences).map(|i| i * 7 % 16).collect();
    for (id, length) in requests.iter().zip(&lengths) {
        let need = StepNeed { kv_blocks: vec![(*id, 1)], ..StepNeed::default() };
        assert_eq!(manager.prepare(NOW, &need, &mut out), Prepared::Ready, "room for a KV block");
        manager.on_tokens_computed(*id, &vec![1; *length as usize]);
    }
    let shape = StepShape { tokens: sequences, sequences, logit_rows: sequences };
    let layer_ns = vec![250_000; LAYERS];
    let (stall_ns, kv_stall_ns) = (vec![0; LAYERS], vec![0; LAYERS]);
    let times = StepTimes { shape, decode_only: true, layer_ns, stall_ns, kv_stall_ns, total_ns: 20_000_000 };
    let mut samples = Vec::new();
    for step in 0..STEPS {
        if step % 512 == 511 {
            restart(&mut manager, &requests, &mut lengths, &mut out);
        }
        samples.push(one_step(&mut manager, &requests, &mut lengths, &times, &mut out));
        settle(&mut manager, &mut out);
    }
    samples
}

/// Replaces all requests by new ones before the arena is full.
fn restart(manager: &mut MemoryManager, requests: &[RequestId], lengths: &mut [u32], out: &mut Vec<Action>) {
    for (id, length) in requests.iter().zip(lengths) {
        manager.close(*id);
        open(manager, *id, id.0 + 1_000, out);
        *length = 0;
    }
}

/// Admits a new request without KV blocks.
fn open(manager: &mut MemoryManager, request: RequestId, salt: u64, out: &mut Vec<Action>) {
    let admission = Admission::new(request, manager.cached_prefix(salt, &[1]));
    let need = StepNeed { admit: vec![admission], ..StepNeed::default() };
    assert_eq!(manager.prepare(NOW, &need, out), Prepared::Ready, "room for a request without KV blocks");
}

fn one_step(
    manager: &mut MemoryManager,
    requests: &[RequestId],
    lengths: &mut [u32],
    times: &StepTimes,
    out: &mut Vec<Action>,
) -> u64 {
    let start = Instant::now();
    manager.boundary(NOW, out);
    let needs = requests.iter().zip(lengths.iter()).filter_map(|(id, length)| {
        let missing = Geometry::kv_blocks_for(length + 1).saturating_sub(manager.kv_of(*id).kv_blocks());
        (missing > 0).then_some((*id, missing))
    });
    let need = StepNeed { kv_blocks: needs.collect(), shape: times.shape, ..StepNeed::default() };
    assert_eq!(manager.prepare(NOW, &need, out), Prepared::Ready, "the arena is large enough");
    let lease = manager.begin(NOW, out);
    let decided = start.elapsed();
    std::hint::black_box(&lease);
    let start = Instant::now();
    for (id, length) in requests.iter().zip(lengths.iter_mut()) {
        manager.on_tokens_computed(*id, &[*length]);
        *length += 1;
    }
    manager.finish(times);
    (decided + start.elapsed()).as_nanos() as u64
}

fn main() -> ExitCode {
    let json = std::env::args().any(|arg| arg == "--json");
    let mut passed = true;
    for forced in [None, Some(ForcedRemap { alpha: 22, beta: 2 })] {
        for sequences in [16, 32, 64] {
            let mut samples = measure(sequences, forced);
            let [median, p99] = [500, 990].map(|of| percentile(&mut samples, of).expect("there are samples"));
            let ok = median <= LIMIT_NS;
            passed &= ok;
            let moving = forced.map_or(0, |f| f.alpha + u16::from(f.beta));
            if json {
                let name =
                    format!("step decisions, {sequences} sequences, {moving} of {LAYERS} layers moving");
                let limit = format!(r#""limit": {LIMIT_NS}, "passed": {ok}, "detail": {{"p99_ns": {p99}}}"#);
                println!(r#"{{"name": "{name}, median", "value": {median}, "unit": "ns", {limit}}}"#);
                continue;
            }
            println!(
                "policy decision: {sequences} sequences, {LAYERS} layers, {moving} moving: median {median} ns, p99 {p99} ns, limit {LIMIT_NS} ns: {}",
                if ok { "pass" } else { "fail" }
            );
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

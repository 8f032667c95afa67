//! eLLM's two algorithms and its ownership changes, case by case.

use sluice_policy::action::{Address, MapOp};
use sluice_policy::chunk_table::{ChunkTable, Owner, Ownership};
use sluice_policy::ellm::{BufferController, Need, Supply, Violations, balloon, premap_chunks};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{ChunkId, KvChunkId};
use sluice_policy::params::Params;

use super::{ComparisonRow, ExperimentReport, Figure, Series};
use crate::paper::ellm::{Phase, admit, inflation};

const CHUNK_BYTES: u64 = 2 << 20;
const TPOT: Violations = Violations { ttft: false, tpot: true };
const TTFT: Violations = Violations { ttft: true, tpot: false };
const NONE: Violations = Violations { ttft: false, tpot: false };

/// Returns how many requests of the queue are admitted, and how many of these with offload.
fn admitted(phase: Phase, buffer: u32, needs: &[(u32, u32)]) -> String {
    let queue: Vec<Need> = needs.iter().map(|&(kv, activation)| Need { kv, activation }).collect();
    let batch = admit(phase, Supply { free: 100, threshold: 10, buffer }, &queue);
    let offloaded = batch.offloaded.iter().filter(|&&offloaded| offloaded).count();
    format!("{}, offloaded {offloaded}", batch.offloaded.len())
}

/// Returns the buffer's size after these iterations.
fn buffer(start: u32, then: &[Violations]) -> u64 {
    let mut controller = BufferController::new(16);
    for _ in 0..start {
        (0..3).for_each(|_| {
            controller.iteration(TTFT);
        });
    }
    then.iter().for_each(|seen| {
        controller.iteration(*seen);
    });
    controller.logical()
}

fn admissions() -> Vec<ComparisonRow> {
    let row = |what: &str, paper: &str, ours: String| ComparisonRow::equal(what, &paper.to_owned(), &ours);
    vec![
        row("100 free, theta 10: 80 + 10", "1, offloaded 0", admitted(Phase::Prefill, 0, &[(80, 10)])),
        row("81 + 10", "0, offloaded 0", admitted(Phase::Prefill, 0, &[(81, 10)])),
        row("81 + 10, a buffer of 81", "1, offloaded 1", admitted(Phase::Prefill, 81, &[(81, 10)])),
        row("81 + 10, a buffer of 80", "0, offloaded 0", admitted(Phase::Prefill, 80, &[(81, 10)])),
        row("decode is never offloaded", "0, offloaded 0", admitted(Phase::Decode, 81, &[(81, 10)])),
        row(
            "the first that does not fit ends admission",
            "1, offloaded 0",
            admitted(Phase::Prefill, 0, &[(50, 0), (60, 0), (1, 0)]),
        ),
    ]
}

fn balloons() -> Vec<ComparisonRow> {
    let most_bytes = Params::default().premap_bytes;
    vec![
        ComparisonRow::equal("KV short by 5: inflate", &5, &inflation(balloon(10, 20, 15, 5))),
        ComparisonRow::equal("activations short by 5: deflate", &-5, &inflation(balloon(20, 10, 5, 15))),
        ComparisonRow::equal("both short: nothing moves", &0, &inflation(balloon(10, 10, 15, 15))),
        ComparisonRow::equal(
            "pre-mapping below 50 MB, chunks of 2 MiB",
            &23,
            &premap_chunks(1_000, most_bytes, CHUNK_BYTES),
        ),
    ]
}

fn buffers() -> Vec<ComparisonRow> {
    vec![
        ComparisonRow::equal("start", &1, &buffer(0, &[])),
        ComparisonRow::equal(
            "3 TTFT violations in 5: doubled",
            &2,
            &buffer(0, &[TTFT, TTFT, NONE, NONE, TTFT]),
        ),
        ComparisonRow::equal("2 of 5: no event", &1, &buffer(0, &[TTFT, TTFT, NONE, NONE, NONE])),
        ComparisonRow::equal("3 over 6: no event", &1, &buffer(0, &[TTFT, TTFT, NONE, NONE, NONE, TTFT])),
        ComparisonRow::equal("3 TPOT violations: halved", &2, &buffer(2, &[TPOT; 3])),
        ComparisonRow::equal("TPOT before TTFT", &2, &buffer(2, &[Violations { ttft: true, tpot: true }; 3])),
        ComparisonRow::equal("never below 1", &1, &buffer(0, &[TPOT; 6])),
        ComparisonRow::equal("never above B_max", &16, &buffer(9, &[])),
    ]
}

/// Creates four activation chunks and a ledger with the same ownership.
fn tenant() -> (Ownership, ChunkTable) {
    let activation = ActivationCost {
        fixed_bytes: 0,
        stream_per_token_bytes: 0,
        chunk_per_token_bytes: 0,
        chunk_tokens: 1,
        per_sequence_bytes: 0,
        per_logit_row_bytes: 0,
    };
    let geometry = Geometry {
        chunk_bytes: CHUNK_BYTES,
        capacity_chunks: 4,
        global_bytes: 0,
        slab_bytes: vec![CHUNK_BYTES],
        layer_block_bytes: CHUNK_BYTES,
        activation,
        staging_chunks: 0,
    };
    let (mut holdings, mut ledger) = (Ownership::new(&geometry, 1), ChunkTable::new(4, CHUNK_BYTES));
    for chunk in (0..4).map(ChunkId) {
        ledger.create(chunk);
        ledger.hand_over(chunk, Owner::Free, Owner::Activation);
        holdings.activation.push(chunk);
    }
    (holdings, ledger)
}

/// Checks the change of the last activation chunk to KV.
fn owners() -> Vec<ComparisonRow> {
    let (before, mut ledger) = tenant();
    let mut after = before.clone();
    after.kv_chunks[0] = after.activation.pop();
    for (chunk, from, to) in before.changes(&after) {
        ledger.hand_over(chunk, from, to);
    }
    let behind = after.addresses().find(|(address, _)| *address == Address::Kv(KvChunkId(0)));
    let [activations, kv, all] = [ledger.count(Owner::Activation), ledger.count(Owner::Kv), ledger.created()];
    let text = |chunk: u32, activations: u32, kv: u32, all: u32| {
        format!("chunk {chunk}; {activations} and {kv} of {all}")
    };
    let ours = behind.map_or("none".to_owned(), |(_, chunk)| text(chunk.0, activations, kv, all));
    let mut later = after.clone();
    later.mark_stale(&before);
    let row = |what: &str, paper: &str, from: &Ownership, to: &Ownership| {
        ComparisonRow::equal(what, &paper.to_owned(), &describe_ops(&from.transaction(to, &[]).ops))
    };
    vec![
        ComparisonRow::equal(
            "zero-copy owner change: what is behind KV, chunks of activations and of KV",
            &text(3, 3, 1, 4),
            &ours,
        ),
        row("its mappings in one transaction", "map new, unmap old", &before, &after),
        row("unmapped later: the inflation", "map new", &before, &later),
        row("the transaction after it", "unmap old", &later, &after),
    ]
}

fn describe_ops(ops: &[MapOp]) -> String {
    let word = |op: &MapOp| match op {
        MapOp::Map(..) => "map new",
        MapOp::Unmap(..) => "unmap old",
    };
    ops.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Checks Algorithms 1 and 2, and ownership changes.
pub fn algorithms() -> ExperimentReport {
    let mut controller = BufferController::new(16);
    let seen = (0..60).map(|iteration| if iteration < 30 { TTFT } else { TPOT });
    let points = (0..).zip(seen).map(|(i, seen)| (f64::from(i), controller.iteration(seen) as f64)).collect();
    ExperimentReport::new(
        [admissions(), balloons(), owners(), buffers()].concat(),
        Figure {
            title: "eLLM Algorithm 2: the buffer under TTFT, then TPOT violations".to_owned(),
            x: "scheduling iteration".to_owned(),
            y: "logical buffer".to_owned(),
            names: Vec::new(),
            lines: vec![Series { name: "B_logic".to_owned(), points }],
        },
    )
}

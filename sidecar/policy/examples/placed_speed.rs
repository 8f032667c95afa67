//! Time of a step's decisions while KV is partly away: `boundary`, `prepare`, `begin`, `commit` and `finish` of a decode step
//! of 80 layers, under each policy that places KV in the host tier, with room for two thirds of the KV. Copies complete
//! between decisions and are not counted; a plan that falls into a step is.
//!
//! Run with `cargo run --release -p sluice-policy --example placed_speed`. Prints the median, the limit and pass or fail.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sluice_policy::action::{Action, Work};
use sluice_policy::brain::{Brain, Prepared, StepNeed, StepTimes};
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::{Params, PolicyName};

const LIMIT_NS: u64 = 20_000;
const LAYERS: usize = 80;
const BLOCK_BYTES: u64 = 64 << 10;
/// Columns of each sequence at first: so many are full.
const COLUMNS: u32 = 24;
const STEPS: usize = 400;
const NOW: Nanos = Nanos(0);

/// Sequences and the time that their steps' decisions took.
struct Bench {
    brain: Brain,
    requests: Vec<RequestId>,
    lengths: Vec<u32>,
    out: Vec<Action>,
    times: StepTimes,
}

fn brain(policy: PolicyName, sequences: u32) -> Brain {
    let kv_bytes = u64::from(sequences * COLUMNS) * LAYERS as u64 * BLOCK_BYTES;
    let geometry = Geometry {
        chunk_bytes: 2 << 20,
        capacity_chunks: (80 * 32 + 600) + (kv_bytes * 2 / 3 / (2 << 20)) as u32,
        global_bytes: 512 << 20,
        slab_bytes: vec![64 << 20; LAYERS],
        block_bytes: BLOCK_BYTES,
        activation: ActivationCost {
            fixed_bytes: 64 << 20,
            stream_per_token_bytes: 64 << 10,
            ..Default::default()
        },
        staging_chunks: 4,
    };
    let params = Params {
        policy,
        max_model_tokens: 1024,
        guaranteed_kv_bytes: 64 * LAYERS as u64 * BLOCK_BYTES,
        host_kv_bytes: 64 << 30,
        remap_cap_permille: 0,
        link_bytes_per_second: 400_000_000_000,
        ..Params::default()
    };
    Brain::new(params, geometry).expect("a tenant that fits")
}

impl Bench {
    fn new(policy: PolicyName, sequences: u32) -> Bench {
        let shape = StepShape { tokens: sequences, sequences, logit_rows: sequences };
        let (layer_ns, none) = (vec![250_000; LAYERS], vec![0; LAYERS]);
        let times = StepTimes {
            shape,
            decode_only: true,
            layer_ns,
            stall_ns: none.clone(),
            kv_stall_ns: none,
            total_ns: 20_000_000,
        };
        let mut bench = Bench {
            brain: brain(policy, sequences),
            requests: (0..u64::from(sequences)).map(RequestId).collect(),
            lengths: (0..sequences).map(|i| i * 7 % 16).collect(),
            out: Vec::new(),
            times,
        };
        bench.brain.start(NOW, &mut bench.out);
        bench.settle();
        for id in bench.requests.clone() {
            bench.brain.open(id, id.0, &[1]);
        }
        bench
    }

    /// Everything that was ordered completes.
    fn settle(&mut self) {
        while !self.out.is_empty() {
            for action in std::mem::take(&mut self.out) {
                let bytes = match &action.work {
                    Work::Fetch(fetch) => fetch.blocks.len() as u64 * BLOCK_BYTES,
                    Work::WriteBack(swaps) => swaps.len() as u64 * BLOCK_BYTES,
                    _ => 64 << 20,
                };
                let outcome = Outcome::Done { bytes, duration_ns: (bytes / 400).max(1) };
                self.brain.complete(NOW, &Completion { id: action.id, outcome }, &mut self.out);
            }
        }
    }

    /// One step in which each sequence gets so many tokens. None when memory does not hold it.
    fn step(&mut self, tokens: u32) -> Option<Duration> {
        let mut spent = Duration::ZERO;
        for _ in 0..1000 {
            let start = Instant::now();
            self.brain.boundary(NOW, &mut self.out);
            let needs = self.requests.iter().zip(&self.lengths).filter_map(|(id, length)| {
                let missing = Geometry::columns_for(length + tokens).saturating_sub(self.brain.columns(*id));
                (missing > 0).then_some((*id, missing))
            });
            let need = StepNeed { columns: needs.collect(), shape: self.times.shape };
            let prepared = match self.brain.blocked() {
                true => Prepared::Wait,
                false => self.brain.prepare(NOW, &need, &mut self.out),
            };
            if prepared == Prepared::Ready {
                let lease = self.brain.begin(NOW, &mut self.out);
                std::hint::black_box(&lease);
                spent += start.elapsed();
                self.settle();
                let start = Instant::now();
                self.commit(tokens);
                self.brain.finish(NOW, &self.times, &mut self.out);
                spent += start.elapsed();
                self.settle();
                return Some(spent);
            }
            spent += start.elapsed();
            if self.out.is_empty() && prepared != Prepared::Wait {
                return None;
            }
            self.settle();
        }
        None
    }

    fn commit(&mut self, tokens: u32) {
        for (id, length) in self.requests.iter().zip(&mut self.lengths) {
            self.brain.commit(*id, &vec![*length; tokens as usize]);
            *length += tokens;
        }
    }
}

/// Nanoseconds of each step's decisions, sorted, and layers that are away.
fn measure(policy: PolicyName, sequences: u32) -> (Vec<u64>, usize) {
    let mut bench = Bench::new(policy, sequences);
    while bench.lengths[0] < (COLUMNS - 4) * 16 && bench.step(16).is_some() {}
    let mut samples: Vec<u64> = Vec::new();
    while samples.len() < STEPS {
        let Some(spent) = bench.step(1) else { break };
        samples.push(spent.as_nanos() as u64);
    }
    samples.sort_unstable();
    (samples, bench.brain.placement().layout.moving.len())
}

fn main() -> ExitCode {
    let mut passed = true;
    for policy in [PolicyName::Pie, PolicyName::OrbitFlow, PolicyName::Unified] {
        for sequences in [16, 32, 64] {
            let (samples, away) = measure(policy, sequences);
            if samples.is_empty() {
                println!("{}: {sequences} sequences: no step fits", policy.name());
                passed = false;
                continue;
            }
            let (median, p99) = (samples[samples.len() / 2], samples[samples.len() * 99 / 100]);
            passed &= median <= LIMIT_NS;
            println!(
                "{}: {sequences} sequences, {away} of {LAYERS} layers away, {} steps: median {median} ns, p99 {p99} ns, limit {LIMIT_NS} ns: {}",
                policy.name(),
                samples.len(),
                if median <= LIMIT_NS { "pass" } else { "fail" }
            );
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

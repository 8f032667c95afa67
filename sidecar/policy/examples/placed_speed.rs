//! Measures a step's decisions while KV is partly offloaded: `boundary`, `prepare`, `begin`, the table changes,
//! `on_tokens_computed` and `finish` of a decode step of 80 layers. It runs under each policy that places KV in the
//! host tier, with device memory for half of the KV at maximum sequence lengths. Sequences grow, end and restart.
//! Copies complete between decisions and are not counted, nor are boundaries at which the step only waits for copies.
//! Plans are made between steps and counted separately.
//!
//! Run with `cargo run --release -p sluice-policy --example placed_speed`. Prints the medians, the limits and pass or
//! fail; `-- --json` prints them as JSON.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sluice_common::statistics::percentile_of_sorted;
use sluice_policy::action::{Action, Work};
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{Admission, MemoryManager, Prepared, StepNeed, StepTimes};
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;

const LIMIT_NS: u64 = 20_000;
const LAYERS: usize = 80;
const BLOCK_BYTES: u64 = 64 << 10;
/// KV blocks of a sequence at its start and at its end.
const KV_BLOCKS: [u32; 2] = [12, 24];
const TOKENS: u32 = 16;
/// The tokens of the sequences.
const WORDS: [u32; (KV_BLOCKS[1] * TOKENS) as usize] = [1; (KV_BLOCKS[1] * TOKENS) as usize];
/// Numbers of warm-up steps and of measured steps.
const STEPS: [usize; 2] = [400, 1600];
const NOW: Nanos = Nanos(0);

struct Sequence {
    id: RequestId,
    /// Number of tokens; 0 before its prefill.
    length: u32,
}

impl Sequence {
    /// Tokens of its next step: the prompt, then one.
    fn next_tokens(&self) -> u32 {
        if self.length > 0 {
            return 1;
        }
        // The first sequences end at different steps.
        let stagger = KV_BLOCKS[1] - KV_BLOCKS[0];
        (KV_BLOCKS[0] + self.id.0 as u32 * 5 % stagger) * TOKENS + self.id.0 as u32 * 3 % TOKENS
    }
}

/// The sequences, and the measured times.
struct Bench {
    manager: MemoryManager,
    sequences: Vec<Sequence>,
    begun: u64,
    out: Vec<Action>,
    times: StepTimes,
    /// Nanoseconds of each plan.
    plans: Vec<u64>,
    /// New sequences that the next step admits.
    admitted: Vec<RequestId>,
}

fn manager(policy: PolicyName, sequences: u32) -> MemoryManager {
    let kv_bytes = u64::from(sequences * KV_BLOCKS[1]) * LAYERS as u64 * BLOCK_BYTES;
    let geometry = Geometry {
        chunk_bytes: 2 << 20,
        capacity_chunks: (80 * 32 + 600) + (kv_bytes * 2 / 3 / (2 << 20)) as u32,
        global_bytes: 512 << 20,
        slab_bytes: vec![64 << 20; LAYERS],
        layer_block_bytes: BLOCK_BYTES,
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
    MemoryManager::new(params, geometry).expect("a tenant that fits")
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
            manager: manager(policy, sequences),
            sequences: Vec::new(),
            begun: 0,
            out: Vec::new(),
            times,
            plans: Vec::new(),
            admitted: Vec::new(),
        };
        bench.manager.start(NOW, &mut bench.out);
        bench.settle();
        bench.sequences = (0..sequences).map(|_| Sequence { id: RequestId(0), length: 0 }).collect();
        (0..sequences as usize).for_each(|at| bench.begin(at));
        bench
    }

    /// Replaces the sequence at this index by a new one.
    fn begin(&mut self, at: usize) {
        self.manager.close(self.sequences[at].id);
        self.begun += 1;
        let id = RequestId(self.begun);
        self.admitted.retain(|one| *one != self.sequences[at].id);
        self.admitted.push(id);
        self.sequences[at] = Sequence { id, length: 0 };
    }

    /// Completes all actions and answers plan requests.
    fn settle(&mut self) {
        while !self.out.is_empty() {
            for action in std::mem::take(&mut self.out) {
                let bytes = match &action.work {
                    Work::Fill(_) => 64 << 20,
                    Work::Fetch(fetch) => fetch.layer_blocks.len() as u64 * BLOCK_BYTES,
                    work => work.swaps().len() as u64 * BLOCK_BYTES,
                };
                let outcome = Outcome::Done { bytes, duration_ns: (bytes / 400).max(1) };
                self.manager.complete(NOW, &Completion { id: action.id, outcome }, &mut self.out);
            }
        }
        if let Some(request) = self.manager.take_plan_request() {
            let start = Instant::now();
            let answer = request.solve();
            self.plans.push(start.elapsed().as_nanos() as u64);
            self.manager.planned(answer);
        }
    }

    /// Runs one step of all sequences. If memory does not hold it, the longest one restarts.
    fn step(&mut self) -> Duration {
        for _ in 0..100_000 {
            let start = Instant::now();
            self.manager.boundary(NOW, &mut self.out);
            let prepared = match self.manager.status().is_blocked() {
                true => Prepared::Wait,
                false => self.manager.prepare(NOW, &self.need(), &mut self.out),
            };
            if prepared == Prepared::Ready {
                self.admitted.clear();
                let lease = self.manager.begin(NOW, &mut self.out);
                std::hint::black_box(&lease);
                let spent = start.elapsed();
                self.settle();
                return spent + self.end_step();
            }
            if self.out.is_empty() && prepared != Prepared::Wait {
                let longest = (0..self.sequences.len()).max_by_key(|at| self.sequences[*at].length);
                self.begin(longest.expect("there are sequences"));
            }
            self.settle();
        }
        panic!("no step fits");
    }

    /// Returns the sequences of a step: those that decode, and one that prefills.
    fn batch(&self) -> impl Iterator<Item = usize> + '_ {
        let prompt = self.sequences.iter().position(|sequence| sequence.length == 0);
        (0..self.sequences.len()).filter(move |at| self.sequences[*at].length > 0 || prompt == Some(*at))
    }

    fn need(&self) -> StepNeed {
        let needs = self.batch().map(|at| &self.sequences[at]).filter_map(|sequence| {
            let kv_blocks = Geometry::kv_blocks_for(sequence.length + sequence.next_tokens());
            let missing = kv_blocks.saturating_sub(self.manager.kv_of(sequence.id).kv_blocks());
            (missing > 0).then_some((sequence.id, missing))
        });
        let new = |id: &RequestId| Admission::new(*id, self.manager.cached_prefix(id.0, &[1]));
        let admit = self.admitted.iter().map(new).collect();
        StepNeed { admit, kv_blocks: needs.collect(), shape: self.times.shape, ..StepNeed::default() }
    }

    fn end_step(&mut self) -> Duration {
        let start = Instant::now();
        for at in self.batch().collect::<Vec<_>>() {
            let sequence = &mut self.sequences[at];
            let tokens = sequence.next_tokens();
            self.manager.on_tokens_computed(sequence.id, &WORDS[..tokens as usize]);
            sequence.length += tokens;
        }
        self.manager.finish(&self.times);
        let over = |at: &usize| self.sequences[*at].length >= KV_BLOCKS[1] * TOKENS;
        let ended: Vec<_> = (0..self.sequences.len()).filter(over).collect();
        ended.into_iter().for_each(|at| self.begin(at));
        let spent = start.elapsed();
        self.settle();
        spent
    }
}

/// Nanoseconds, sorted.
struct Samples(Vec<u64>);

impl Samples {
    fn of(mut ns: Vec<u64>) -> Samples {
        ns.sort_unstable();
        Samples(ns)
    }

    fn at(&self, permille: u64) -> u64 {
        percentile_of_sorted(&self.0, permille).unwrap_or(0)
    }
}

/// Returns the times of steps with offloaded KV, the maximum number of offloaded layers, and the times of plans.
fn measure(policy: PolicyName, sequences: u32) -> (Samples, usize, Samples) {
    let mut bench = Bench::new(policy, sequences);
    for _ in 0..STEPS[0] {
        bench.step();
    }
    let (mut samples, mut most) = (Vec::new(), 0);
    for _ in 0..STEPS[1] {
        let spent = bench.step();
        let away = bench.manager.figures().placement().layout.moving.len();
        if away > 0 {
            samples.push(spent.as_nanos() as u64);
            most = most.max(away);
        }
    }
    (Samples::of(samples), most, Samples::of(bench.plans))
}

/// Prints the result for a policy and a number of sequences; returns whether the limit was kept.
fn print(json: bool, policy: PolicyName, sequences: u32) -> bool {
    let (steps, away, plans) = measure(policy, sequences);
    let name =
        format!("{}, {sequences} sequences, up to {away} of {LAYERS} layers of KV away", policy.name());
    if steps.0.is_empty() {
        eprintln!("{name}: nothing is away");
        return false;
    }
    let (median, p99) = (steps.at(500), steps.at(990));
    let passed = median <= LIMIT_NS;
    let planned = [plans.at(500), plans.at(990)];
    if json {
        let plans = format!(
            r#""plans": {}, "plan_median_ns": {}, "plan_p99_ns": {}"#,
            plans.0.len(),
            planned[0],
            planned[1]
        );
        let detail = format!(r#"{{"steps": {}, "p99_ns": {p99}, {plans}}}"#, steps.0.len());
        let limit = format!(r#""limit": {LIMIT_NS}, "passed": {passed}, "detail": {detail}"#);
        println!(r#"{{"name": "step decisions, {name}, median", "value": {median}, "unit": "ns", {limit}}}"#);
    } else {
        let verdict = if passed { "pass" } else { "fail" };
        println!(
            "{name}: {} steps: median {median} ns, p99 {p99} ns, limit {LIMIT_NS} ns: {verdict}",
            steps.0.len()
        );
        println!("    {} plans during steps: median {} ns, p99 {} ns", plans.0.len(), planned[0], planned[1]);
    }
    passed
}

fn main() -> ExitCode {
    let json = std::env::args().any(|arg| arg == "--json");
    let mut passed = true;
    for policy in [PolicyName::FlexGen, PolicyName::Pie, PolicyName::OrbitFlow, PolicyName::Unified] {
        for sequences in [16, 32, 64] {
            passed &= print(json, policy, sequences);
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

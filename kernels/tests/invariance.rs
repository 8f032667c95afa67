//! A sequence's logits and KV have the same bits alone, in any batch, with any chunking, block table and number of
//! threads, and with any content of other memory. The properties are those of every machine that computes steps.

mod host;

use sluice_kernels::sampling::unit_interval;
use sluice_link::model::ModelSpec;

use crate::agreement::{checkpoint, tokens};
use crate::checkpoint::Checkpoint;
use crate::memory::TestSequence;

/// Lengths of the sequences of a scenario: below, at and above block boundaries.
pub const LENGTHS: [usize; 5] = [5, 16, 33, 50, 79];
const KV_BLOCKS: usize = 5;

/// What computes steps.
pub trait Machine {
    type Tenant: Tenant;

    /// Returns a model in memory of `layer_blocks` poisoned blocks.
    fn start(&self, model: TestModel<'_>, layer_blocks: u32, split: Split) -> Self::Tenant;
}

/// A model, its memory, and a way to split its work.
pub trait Tenant {
    /// Runs a step and returns the rows of logits in order.
    fn run(&mut self, parts: &[TestSequence<'_>]) -> Vec<Vec<f32>>;
    /// Returns all bytes of the KV arena.
    fn kv_bytes(&self) -> Vec<u8>;
    /// Returns the bits of K and V at `place` in block `id`: each head's K, then each head's V.
    fn kv_bits(&self, id: u32, place: usize) -> Vec<u32>;
    /// Flips the lowest bit of one byte of a layer's weights.
    fn flip_bit(&mut self, layer: usize, byte: usize);
}

/// A shape with weights.
#[derive(Clone, Copy)]
pub struct TestModel<'a> {
    pub spec: &'a ModelSpec,
    pub checkpoint: &'a Checkpoint,
}

/// How a machine splits the work of a step.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Threads.
    pub threads: usize,
    /// Most tokens that pass a layer together.
    pub chunk: u32,
    /// Whether decode steps are padded as for graphs, where a machine has them.
    pub pads: bool,
}

impl Split {
    /// No split.
    pub const NONE: Split = Split { threads: 1, chunk: u32::MAX, pads: false };
}

/// The results of a sequence: by position, bits of its logits and of each layer's K and V.
#[derive(Clone, PartialEq)]
struct Trace {
    logits: Vec<Vec<u32>>,
    kv: Vec<Vec<u32>>,
}

struct TestRng(u64, u64);

impl TestRng {
    fn below(&mut self, bound: usize) -> usize {
        self.1 += 1;
        (unit_interval(self.0, self.1) * bound as f64) as usize
    }

    fn shuffle(&mut self, items: &mut [u32]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n + 1));
        }
    }
}

/// How a scenario is cut into steps.
struct Steps {
    /// Maximum chunk length; 1 = token by token.
    longest: usize,
    /// Maximum of sequences in a step.
    together: usize,
    rng: TestRng,
}

impl Steps {
    /// Token by token, each sequence alone.
    fn plain() -> Steps {
        Steps { longest: 1, together: 1, rng: TestRng(0, 0) }
    }
}

/// Sequences of a model on a machine.
pub struct Scenario<'m, M> {
    machine: &'m M,
    spec: ModelSpec,
    checkpoint: Checkpoint,
    sequences: Vec<Vec<u32>>,
}

impl<'m, M: Machine> Scenario<'m, M> {
    /// Sequences of these lengths.
    pub fn new(machine: &'m M, spec: &ModelSpec, lengths: &[usize]) -> Self {
        let sequence = |(seed, count): (u64, &usize)| tokens(*count, seed, spec);
        let sequences = (0..).zip(lengths).map(sequence).collect();
        Scenario { machine, spec: spec.clone(), checkpoint: checkpoint(spec), sequences }
    }

    fn layers(&self) -> usize {
        usize::from(self.spec.layers)
    }

    fn layer_blocks(&self) -> u32 {
        (self.sequences.len() * KV_BLOCKS * self.layers()) as u32 + 7
    }

    fn start(&self, split: Split) -> M::Tenant {
        let model = TestModel { spec: &self.spec, checkpoint: &self.checkpoint };
        self.machine.start(model, self.layer_blocks(), split)
    }

    /// Runs the simplest plan: one thread, token by token, each sequence alone.
    fn plain(&self) -> Vec<Trace> {
        self.trace(&mut self.start(Split::NONE), Steps::plain())
    }

    fn trace(&self, tenant: &mut M::Tenant, mut plan: Steps) -> Vec<Trace> {
        let (layers, sequences) = (self.layers(), &self.sequences);
        let mut ids: Vec<u32> = (0..self.layer_blocks()).collect();
        plan.rng.shuffle(&mut ids);
        let tables: Vec<&[u32]> = ids.chunks(layers * KV_BLOCKS).take(sequences.len()).collect();
        let mut done = vec![0; sequences.len()];
        let mut logits = vec![Vec::new(); sequences.len()];
        while done.iter().zip(sequences).any(|(done, tokens)| *done < tokens.len()) {
            let mut open: Vec<usize> =
                (0..sequences.len()).filter(|s| done[*s] < sequences[*s].len()).collect();
            while open.len() > plan.together {
                open.remove(plan.rng.below(open.len()));
            }
            let mut ends = Vec::new();
            for &s in &open {
                ends.push((done[s] + 1 + plan.rng.below(plan.longest)).min(sequences[s].len()));
            }
            let part = |(&s, &end): (&usize, &usize)| part(&sequences[s][done[s]..end], done[s], tables[s]);
            let parts: Vec<TestSequence<'_>> = open.iter().zip(&ends).map(part).collect();
            let mut rows = tenant.run(&parts).into_iter();
            for (&s, &end) in open.iter().zip(&ends) {
                logits[s].extend(rows.by_ref().take(end - done[s]).map(|row| bits(&row)));
                done[s] = end;
            }
        }
        let kv = |s: usize| {
            let at = |position: usize, layer: usize| {
                tenant.kv_bits(tables[s][layer * KV_BLOCKS + position / 16], position % 16)
            };
            (0..sequences[s].len()).map(|p| (0..layers).flat_map(|layer| at(p, layer)).collect()).collect()
        };
        logits.into_iter().enumerate().map(|(s, logits)| Trace { logits, kv: kv(s) }).collect()
    }

    /// Asserts that `cases` random splits of the work give the bits of the simplest one.
    pub fn assert_invariant(&self, cases: u64, what: &str) {
        let expected = self.plain();
        for seed in 1..=cases {
            let mut dice = TestRng(seed, 0);
            let threads = 1 + dice.below(4);
            let longest = [1, 3, 17, 40, 79][dice.below(5)];
            let chunk = [1, 2, 7, 16, 33, 500][dice.below(6)];
            let split = Split { threads, chunk, pads: true };
            let together = 1 + dice.below(self.sequences.len());
            let found = self.trace(&mut self.start(split), Steps { longest, together, rng: dice });
            if let Some(difference) = first_difference(&found, &expected) {
                panic!(
                    "{what}, seed {seed}, {split:?}, up to {longest} tokens, {together} together: {difference}"
                );
            }
        }
    }

    /// Compares whole prompts in one step, split within sequences and within blocks, with steps of one token.
    pub fn assert_chunks_have_same_bits(&self, splits: &[(usize, u32)]) {
        let expected = self.plain();
        let expected: Vec<_> = expected.iter().flat_map(|trace| &trace.logits).collect();
        let tokens: usize = self.sequences.iter().map(Vec::len).sum();
        for &(threads, chunk) in splits {
            assert!(tokens > chunk as usize, "one step is several chunks");
            let mut tenant = self.start(Split { threads, chunk, pads: false });
            let ids: Vec<u32> = (0..self.layer_blocks()).collect();
            let tables = ids.chunks(self.layers() * KV_BLOCKS);
            let parts: Vec<_> =
                self.sequences.iter().zip(tables).map(|(tokens, ids)| part(tokens, 0, ids)).collect();
            let found: Vec<Vec<u32>> = tenant.run(&parts).iter().map(|row| bits(row)).collect();
            assert!(found.iter().eq(expected.iter().copied()), "{threads} threads, chunks of {chunk}");
        }
    }

    /// Asserts that the comparison detects one flipped bit of a weight.
    pub fn assert_flipped_bit_is_detected(&self) {
        let mut tenant = self.start(Split::NONE);
        tenant.flip_bit(1, 4096);
        let flipped = self.trace(&mut tenant, Steps::plain());
        assert!(first_difference(&self.plain(), &flipped).is_some(), "a flipped bit went unseen");
    }

    /// Asserts that a step writes K and V only at its own positions.
    pub fn assert_step_writes_no_position_before_its_start(&self, split: Split) {
        let (tokens, mut tenant) = (tokens(40, 1, &self.spec), self.start(split));
        let table: Vec<u32> = (0..(KV_BLOCKS * self.layers()) as u32).collect();
        tenant.run(&[part(&tokens[..20], 0, &table)]);
        let committed = |tenant: &M::Tenant| -> Vec<Vec<u32>> {
            (0..20).map(|p| tenant.kv_bits(table[p / 16], p % 16)).collect()
        };
        let (before, expected) = (tenant.kv_bytes(), committed(&tenant));
        tenant.run(&[part(&tokens[20..], 20, &table)]);
        assert_eq!(committed(&tenant), expected);
        let changed = before.iter().zip(tenant.kv_bytes()).filter(|(before, after)| *before != after).count();
        let width = (self.spec.kv_heads * self.spec.head_dim) as usize * self.spec.dtype.bytes();
        let written = 20 * 2 * width * self.layers();
        assert!(changed > 0 && changed <= written, "{changed} bytes changed, {written} were due");
    }
}

/// Part of a sequence from `start` on, all of whose rows have logits.
fn part<'a>(tokens: &'a [u32], start: usize, layer_blocks: &'a [u32]) -> TestSequence<'a> {
    TestSequence { start, tokens, layer_blocks, kv_blocks: KV_BLOCKS, rows: tokens.len() }
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

fn first_difference(a: &[Trace], b: &[Trace]) -> Option<String> {
    let pairs = a.iter().zip(b).enumerate();
    pairs
        .filter(|(_, (a, b))| a != b)
        .map(|(s, (a, b))| {
            let logits = a.logits.iter().zip(&b.logits).position(|(a, b)| a != b);
            let kv = a.kv.iter().zip(&b.kv).position(|(a, b)| a != b);
            format!("sequence {s}: logits differ at {logits:?}, KV at {kv:?}")
        })
        .next()
}

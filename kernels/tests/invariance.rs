//! A sequence's logits and KV have the same bits alone, in any batch, with any chunking, block table and number of
//! threads, and with any content of other memory.

use sluice_kernels::forward::Model;
use sluice_kernels::sampling::unit_interval;
use sluice_kernels::simd::Isa;
use sluice_link::model::{Dtype, ModelSpec};

use crate::agreement::{checkpoint, tokens};
use crate::checkpoint::Checkpoint;
use crate::memory::{Memory, TestSequence};
use crate::specs::{DTYPES, llama, opt};

/// Lengths of the sequences of a scenario: below, at and above block boundaries.
const LENGTHS: [usize; 5] = [5, 16, 33, 50, 79];
const KV_BLOCKS: usize = 5;

/// The results of a sequence: by position, bits of its logits and of each layer's K and V.
#[derive(Clone, PartialEq)]
struct Trace {
    logits: Vec<Vec<u32>>,
    kv: Vec<Vec<Vec<u32>>>,
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

/// Parameters of a run of a scenario.
struct Plan {
    model: Model,
    /// Maximum chunk length; 1 = token by token.
    longest: usize,
    /// Maximum of sequences in a step.
    together: usize,
    rng: TestRng,
}

fn trace(memory: &mut Memory, mut plan: Plan, sequences: &[Vec<u32>]) -> Vec<Trace> {
    let layers = usize::from(memory.spec.layers);
    let per_sequence = layers * KV_BLOCKS;
    let mut ids: Vec<u32> = (0..memory.layer_blocks).collect();
    plan.rng.shuffle(&mut ids);
    let tables: Vec<&[u32]> = ids.chunks(per_sequence).take(sequences.len()).collect();
    let mut done = vec![0; sequences.len()];
    let mut logits = vec![Vec::new(); sequences.len()];
    while done.iter().zip(sequences).any(|(done, tokens)| *done < tokens.len()) {
        let mut open: Vec<usize> = (0..sequences.len()).filter(|s| done[*s] < sequences[*s].len()).collect();
        while open.len() > plan.together {
            open.remove(plan.rng.below(open.len()));
        }
        let mut ends = Vec::new();
        for &s in &open {
            ends.push((done[s] + 1 + plan.rng.below(plan.longest)).min(sequences[s].len()));
        }
        let parts: Vec<TestSequence<'_>> = open
            .iter()
            .zip(&ends)
            .map(|(&s, &end)| TestSequence {
                start: done[s],
                tokens: &sequences[s][done[s]..end],
                layer_blocks: tables[s],
                kv_blocks: KV_BLOCKS,
                rows: end - done[s],
            })
            .collect();
        let mut rows = memory.run(&plan.model, &parts).unwrap().into_iter();
        for (&s, &end) in open.iter().zip(&ends) {
            logits[s].extend(
                rows.by_ref()
                    .take(end - done[s])
                    .map(|row| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>()),
            );
            done[s] = end;
        }
    }
    let kv = |s: usize| {
        let at = |position: usize, layer: usize| {
            memory.kv_bits(tables[s][layer * KV_BLOCKS + position / 16], position % 16)
        };
        (0..sequences[s].len())
            .map(|p| (0..layers).flat_map(|layer| at(p, layer)).collect())
            .map(|bits| vec![bits])
            .collect()
    };
    logits.into_iter().enumerate().map(|(s, logits)| Trace { logits, kv: kv(s) }).collect()
}

/// Runs the simplest plan: one thread, token by token, each sequence alone.
fn plain(spec: &ModelSpec, checkpoint: &Checkpoint, sequences: &[Vec<u32>], isa: Isa) -> Vec<Trace> {
    let mut memory = fresh(spec, checkpoint);
    let model = Model::with_isa(spec.clone(), memory.chunk_bytes, 1, isa).unwrap();
    trace(&mut memory, Plan { model, longest: 1, together: 1, rng: TestRng(0, 0) }, sequences)
}

fn fresh(spec: &ModelSpec, checkpoint: &Checkpoint) -> Memory {
    Memory::new(spec, checkpoint, (LENGTHS.len() * KV_BLOCKS * usize::from(spec.layers)) as u32 + 7)
}

fn scenario(spec: &ModelSpec) -> Vec<Vec<u32>> {
    LENGTHS.iter().enumerate().map(|(seed, count)| tokens(*count, seed as u64, spec)).collect()
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

fn invariant(spec: &ModelSpec, cases: u64) {
    let checkpoint = checkpoint(spec);
    let sequences = scenario(spec);
    for isa in Isa::available() {
        let expected = plain(spec, &checkpoint, &sequences, isa);
        for seed in 1..=cases {
            let mut memory = fresh(spec, &checkpoint);
            let mut dice = TestRng(seed, 0);
            let threads = 1 + dice.below(4);
            let model = Model::with_isa(spec.clone(), memory.chunk_bytes, threads, isa).unwrap();
            let longest = [1, 3, 17, 40, 79][dice.below(5)];
            let chunk = [1, 2, 7, 16, 33, 500][dice.below(6)];
            let model = model.in_chunks_of(chunk);
            let together = 1 + dice.below(sequences.len());
            let found = trace(&mut memory, Plan { model, longest, together, rng: dice }, &sequences);
            if let Some(difference) = first_difference(&found, &expected) {
                panic!(
                    "{isa:?}, seed {seed}, {threads} threads, up to {longest} tokens in chunks of {chunk}, {together} \
                     together: {difference}"
                );
            }
        }
    }
}

#[test]
fn llama_has_the_same_bits_under_every_split_of_the_work() {
    DTYPES.into_iter().for_each(|dtype| invariant(&llama(dtype), 6));
}

#[test]
fn opt_has_the_same_bits_under_every_split_of_the_work() {
    DTYPES.into_iter().for_each(|dtype| invariant(&opt(dtype), 6));
}

/// Compares whole prompts in one step, split within sequences and within blocks, with steps of one token.
#[test]
fn chunked_prefill_has_same_bits() {
    for spec in [llama(Dtype::Bf16), opt(Dtype::F32)] {
        let checkpoint = checkpoint(&spec);
        let sequences = scenario(&spec);
        let expected = plain(&spec, &checkpoint, &sequences, Isa::best());
        let tokens: usize = sequences.iter().map(Vec::len).sum();
        for (threads, chunk) in [(1, 1), (2, 19), (1, 48), (3, 182)] {
            let mut memory = fresh(&spec, &checkpoint);
            let model = memory.model(threads).in_chunks_of(chunk);
            assert!(tokens > chunk as usize, "one step is several chunks");
            let ids: Vec<u32> = (0..memory.layer_blocks).collect();
            let tables = ids.chunks(usize::from(spec.layers) * KV_BLOCKS);
            let parts: Vec<_> = sequences
                .iter()
                .zip(tables)
                .map(|(tokens, layer_blocks)| TestSequence {
                    start: 0,
                    tokens,
                    layer_blocks,
                    kv_blocks: KV_BLOCKS,
                    rows: tokens.len(),
                })
                .collect();
            let whole = memory.run(&model, &parts).unwrap();
            let expected: Vec<_> = expected.iter().flat_map(|trace| &trace.logits).collect();
            let found: Vec<Vec<u32>> =
                whole.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect();
            assert!(found.iter().eq(expected), "{threads} threads, chunks of {chunk}");
        }
    }
}

/// Large enough that threads share the work and that it is blocked in panels.
#[test]
fn a_wider_model_has_the_same_bits_under_every_split_of_the_work() {
    let wide = |dtype| ModelSpec {
        hidden: 256,
        intermediate: 704,
        heads: 8,
        kv_heads: 2,
        head_dim: 32,
        ..llama(dtype)
    };
    invariant(&wide(Dtype::F32), 3);
    invariant(&wide(Dtype::Bf16), 3);
}

#[test]
fn fused_instruction_sets_give_the_same_bits() {
    let spec = llama(Dtype::F16);
    let checkpoint = checkpoint(&spec);
    let sequences = scenario(&spec);
    let fused = Isa::available().into_iter().filter(|isa| *isa != Isa::Baseline);
    let traces: Vec<_> = fused.map(|isa| (isa, plain(&spec, &checkpoint, &sequences, isa))).collect();
    for pair in traces.windows(2) {
        let difference = first_difference(&pair[0].1, &pair[1].1);
        assert_eq!(difference, None, "{:?} against {:?}", pair[0].0, pair[1].0);
    }
}

/// Tests the comparison: it detects another order of rounding (no fused multiply-add) and one flipped bit of a weight.
#[test]
fn different_order_and_flipped_bit_are_detected() {
    let spec = llama(Dtype::F32);
    let checkpoint = checkpoint(&spec);
    let sequences = scenario(&spec);
    let expected = plain(&spec, &checkpoint, &sequences, Isa::best());
    if Isa::best() != Isa::Baseline {
        let other = plain(&spec, &checkpoint, &sequences, Isa::Baseline);
        assert!(first_difference(&expected, &other).is_some(), "another order went unseen");
    }
    let mut memory = fresh(&spec, &checkpoint);
    memory.layers[1].as_mut_slice()[4096] ^= 1;
    let model = memory.model(1);
    let flipped = trace(&mut memory, Plan { model, longest: 1, together: 1, rng: TestRng(0, 0) }, &sequences);
    assert!(first_difference(&expected, &flipped).is_some(), "a flipped bit went unseen");
}

/// A step writes K and V only at its own positions.
#[test]
fn a_step_writes_no_position_before_its_start() {
    let spec = llama(Dtype::Bf16);
    let mut memory = fresh(&spec, &checkpoint(&spec));
    let model = memory.model(2);
    let tokens = tokens(40, 1, &spec);
    let layer_blocks: Vec<u32> = (0..(KV_BLOCKS * 3) as u32).collect();
    let part = |start: usize, end: usize| TestSequence {
        start,
        tokens: &tokens[start..end],
        layer_blocks: &layer_blocks,
        kv_blocks: KV_BLOCKS,
        rows: 0,
    };
    memory.run(&model, &[part(0, 20)]).unwrap();
    let before = memory.kv.as_slice().to_vec();
    memory.run(&model, &[part(20, 40)]).unwrap();
    let after = memory.kv.as_slice().to_vec();
    memory.kv.as_mut_slice().copy_from_slice(&before);
    let committed: Vec<_> = (0..20).map(|p| memory.kv_bits(layer_blocks[p / 16], p % 16)).collect();
    memory.kv.as_mut_slice().copy_from_slice(&after);
    assert_eq!(committed, (0..20).map(|p| memory.kv_bits(layer_blocks[p / 16], p % 16)).collect::<Vec<_>>());
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    let written = 20 * 2 * (spec.kv_heads * spec.head_dim) as usize * 2 * usize::from(spec.layers);
    assert!(changed > 0 && changed <= written, "{changed} bytes changed, {written} were due");
}

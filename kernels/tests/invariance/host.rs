//! The properties on the CPU, with each of its instruction sets.

use sluice_kernels::forward::Model;
use sluice_kernels::simd::Isa;
use sluice_link::model::{Dtype, ModelSpec};

use super::{LENGTHS, Machine, Scenario, Split, Tenant, TestModel, first_difference};
use crate::memory::{Memory, TestSequence};
use crate::specs::{DTYPES, llama, opt};

/// A model on the CPU.
pub struct HostTenant {
    memory: Memory,
    model: Model,
}

impl Machine for Isa {
    type Tenant = HostTenant;

    fn start(&self, model: TestModel<'_>, layer_blocks: u32, split: Split) -> HostTenant {
        let memory = Memory::new(model.spec, model.checkpoint, layer_blocks);
        let model = Model::with_isa(model.spec.clone(), memory.chunk_bytes, split.threads, *self).unwrap();
        HostTenant { memory, model: model.in_chunks_of(split.chunk) }
    }
}

impl Tenant for HostTenant {
    fn run(&mut self, parts: &[TestSequence<'_>]) -> Vec<Vec<f32>> {
        self.memory.run(&self.model, parts).unwrap()
    }

    fn kv_bytes(&self) -> Vec<u8> {
        self.memory.kv.as_slice().to_vec()
    }

    fn kv_bits(&self, id: u32, place: usize) -> Vec<u32> {
        self.memory.kv_bits(id, place)
    }

    fn flip_bit(&mut self, layer: usize, byte: usize) {
        self.memory.layers[layer].as_mut_slice()[byte] ^= 1;
    }
}

fn invariant(spec: &ModelSpec, cases: u64) {
    for isa in Isa::available() {
        Scenario::new(&isa, spec, &LENGTHS).assert_invariant(cases, &format!("{isa:?}"));
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
fn chunked_prefill_has_same_bits() {
    for spec in [llama(Dtype::Bf16), opt(Dtype::F32)] {
        let isa = Isa::best();
        let scenario = Scenario::new(&isa, &spec, &LENGTHS);
        scenario.assert_chunks_have_same_bits(&[(1, 1), (2, 19), (1, 48), (3, 182)]);
    }
}

#[test]
fn fused_instruction_sets_give_the_same_bits() {
    let spec = llama(Dtype::F16);
    let fused = Isa::available().into_iter().filter(|isa| *isa != Isa::Baseline);
    let traces: Vec<_> = fused.map(|isa| (isa, Scenario::new(&isa, &spec, &LENGTHS).plain())).collect();
    for pair in traces.windows(2) {
        let difference = first_difference(&pair[0].1, &pair[1].1);
        assert_eq!(difference, None, "{:?} against {:?}", pair[0].0, pair[1].0);
    }
}

/// Tests the comparison: it detects another order of rounding (no fused multiply-add) and one flipped bit of a weight.
#[test]
fn different_order_and_flipped_bit_are_detected() {
    let spec = llama(Dtype::F32);
    let isa = Isa::best();
    let best = Scenario::new(&isa, &spec, &LENGTHS);
    if isa != Isa::Baseline {
        let other = Scenario::new(&Isa::Baseline, &spec, &LENGTHS).plain();
        assert!(first_difference(&best.plain(), &other).is_some(), "another order went unseen");
    }
    best.assert_flipped_bit_is_detected();
}

#[test]
fn a_step_writes_no_position_before_its_start() {
    let isa = Isa::best();
    let scenario = Scenario::new(&isa, &llama(Dtype::Bf16), &LENGTHS);
    scenario.assert_step_writes_no_position_before_its_start(Split { threads: 2, ..Split::NONE });
}

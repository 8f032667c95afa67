//! The properties of splits of the work ([`crate::invariance`]) by the CUDA kernels, run by the interpreter.

use sluice_kernels::cuda::memory::KvArena;
use sluice_link::model::{Dtype, ModelSpec};

use super::device::Device;
use super::forward::{Tenant, shapes};
use crate::invariance::{self, LENGTHS, Machine, Scenario, Split, TestModel};
use crate::memory::TestSequence;
use crate::specs::DTYPES;

/// Lengths that end in seconds: below, at and above a block boundary.
const FEW: [usize; 3] = [5, 16, 21];

/// The kernels. Threads are those of the interpreter, which also decide its order of warps.
struct Kernels;

impl Machine for Kernels {
    type Tenant = Tenant;

    fn start(&self, model: TestModel<'_>, layer_blocks: u32, split: Split) -> Tenant {
        let mut device = Device::fast();
        (device.options.workers, device.options.warp_order_seed) = (split.threads, split.threads as u64 - 1);
        let tenant = Tenant::on(device, model.spec, model.checkpoint, layer_blocks, split.chunk);
        if split.pads { tenant.padded() } else { tenant }
    }
}

impl invariance::Tenant for Tenant {
    fn run(&mut self, parts: &[TestSequence<'_>]) -> Vec<Vec<f32>> {
        Tenant::run(self, parts).0
    }

    fn kv_bytes(&self) -> Vec<u8> {
        self.device.download(self.ranges.kv, self.arena_bytes)
    }

    fn kv_bits(&self, id: u32, place: usize) -> Vec<u32> {
        let spec = self.model.spec();
        let (heads, dim, format) = (spec.kv_heads as usize, spec.head_dim as usize, spec.dtype.bytes());
        let block_bytes = spec.layer_block_bytes();
        let start = KvArena::new(self.ranges.kv, self.chunk_bytes, block_bytes as u32).address(id);
        let block: Vec<u8> = self.device.download(start, block_bytes as usize);
        // K and V: `[kv_heads][16][dim]` each.
        let number = |head: usize, d: usize| {
            let mut word = [0; 4];
            word[..format].copy_from_slice(&block[((head * 16 + place) * dim + d) * format..][..format]);
            u32::from_le_bytes(word)
        };
        (0..2 * heads).flat_map(|head| (0..dim).map(move |d| (head, d))).map(|(h, d)| number(h, d)).collect()
    }

    fn flip_bit(&mut self, layer: usize, byte: usize) {
        let at = self.ranges.layers[layer] + byte as u64;
        let old: Vec<u8> = self.device.download(at, 1);
        self.device.write(at, &[old[0] ^ 1]);
    }
}

fn scenario(spec: &ModelSpec, lengths: &[usize]) -> Scenario<'static, Kernels> {
    Scenario::new(&Kernels, spec, lengths)
}

#[test]
fn a_model_of_each_family_has_the_same_bits_under_splits_of_the_work() {
    scenario(&shapes(Dtype::Bf16)[0], &FEW).assert_invariant(3, "llama");
    scenario(&shapes(Dtype::F32)[2], &FEW).assert_invariant(2, "opt");
}

#[test]
#[ignore = "cargo xtask nightly: takes minutes by the interpreter"]
fn every_format_has_the_same_bits_under_every_split_of_the_work() {
    for spec in DTYPES.into_iter().flat_map(shapes) {
        scenario(&spec, &LENGTHS).assert_invariant(6, &format!("{:?} {:?}", spec.family, spec.dtype));
    }
}

#[test]
fn chunked_prefill_has_same_bits() {
    for spec in [&shapes(Dtype::F16)[0], &shapes(Dtype::F32)[2]] {
        scenario(spec, &FEW).assert_chunks_have_same_bits(&[(1, 1), (2, 19), (1, 41)]);
    }
}

#[test]
fn a_flipped_bit_of_a_weight_is_detected() {
    scenario(&shapes(Dtype::F32)[0], &FEW[..2]).assert_flipped_bit_is_detected();
}

#[test]
fn a_step_writes_no_position_before_its_start() {
    for pads in [false, true] {
        let split = Split { threads: 2, pads, ..Split::NONE };
        scenario(&shapes(Dtype::Bf16)[0], &FEW).assert_step_writes_no_position_before_its_start(split);
    }
}

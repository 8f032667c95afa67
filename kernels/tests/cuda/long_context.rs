//! A decode at the last position of the longest context by every kernel of a layer: norm, product of Q, K and V, RoPE and
//! the write of K and V, attention, output, MLP.

use sluice_link::model::{Dtype, ModelSpec};

use super::device::Device;
use super::forward::Tenant;
use super::paged::BLOCK;
use super::tolerances;
use super::values::{Random, encode};
use crate::agreement::{checkpoint, error};
use crate::memory::TestSequence;
use crate::reference::{Past, Reference, Rounding};
use crate::specs::{LLAMA3_SCALING, llama};

/// Tokens of the longest context.
const LENGTH: usize = 131_072;

/// A model of one layer with some query heads to one head of K and V.
fn spec(heads: u32, head_dim: u32) -> ModelSpec {
    ModelSpec {
        layers: 1,
        heads,
        kv_heads: 1,
        head_dim,
        hidden: heads * head_dim,
        intermediate: 2 * heads * head_dim,
        max_positions: LENGTH as u32,
        rope_theta: 500_000.0,
        rope_scaling: LLAMA3_SCALING,
        ..llama(Dtype::Bf16)
    }
}

/// Random K and V of all earlier positions. K is so large that a query sees few of them.
fn past(random: &mut Random, spec: &ModelSpec) -> Past {
    let mut rows = |factor: f32| {
        let all = random.normal(Dtype::Bf16, (LENGTH - 1) * spec.head_dim as usize);
        all.chunks(spec.head_dim as usize)
            .map(|row| row.iter().map(|x| f64::from(factor * x)).collect())
            .collect()
    };
    Past { keys: rows(4.0), values: rows(1.0) }
}

/// Writes K and V into shuffled blocks. Returns the blocks' ids.
fn write(tenant: &Tenant, random: &mut Random, spec: &ModelSpec, past: &Past) -> Vec<u32> {
    let ids = random.permutation((LENGTH / BLOCK) as u32);
    let dim = spec.head_dim as usize;
    for (column, id) in ids.iter().enumerate() {
        let rows = column * BLOCK..((column + 1) * BLOCK).min(LENGTH - 1);
        let mut block = vec![f32::NAN; 2 * BLOCK * dim];
        for (half, all) in block.chunks_mut(BLOCK * dim).zip([&past.keys, &past.values]) {
            let numbers = all[rows.clone()].iter().flatten();
            half.iter_mut().zip(numbers).for_each(|(to, from)| *to = *from as f32);
        }
        tenant.write_block(*id, &encode(Dtype::Bf16, &block));
    }
    ids
}

/// Runs the decode on a device, and compares its logits with those of f64.
fn decode(device: Device<'static>, spec: &ModelSpec) {
    let mut random = Random(400);
    let checkpoint = checkpoint(spec);
    let mut past = past(&mut random, spec);
    let tenant = Tenant::on(device, spec, &checkpoint, (LENGTH / BLOCK) as u32, u32::MAX);
    let ids = write(&tenant, &mut random, spec, &past);
    let tokens = [17];
    let part = TestSequence {
        start: LENGTH - 1,
        tokens: &tokens,
        layer_blocks: &ids,
        kv_blocks: LENGTH / BLOCK,
        rows: 1,
    };
    let (found, _) = tenant.run(&[part]);
    let reference = Reference { spec, checkpoint: &checkpoint, device: Rounding::Gpu };
    // Attention adds up weights of all positions in f32.
    let tolerance = tolerances::logits(spec.dtype, 1) + 2.0 * tolerances::SUM * LENGTH as f64;
    let off = |past: &Past| error(&found, &reference.logits_after(past, &tokens));
    let right = off(&past);
    assert!(right < tolerance, "off by {right:e} of the logits' spread");
    // The comparison sees a wrong position, and positions that are left out.
    past.keys.pop();
    past.values.pop();
    let earlier = off(&past);
    past.keys.truncate(LENGTH / 2);
    past.values.truncate(LENGTH / 2);
    let half = off(&past);
    assert!(
        earlier > tolerance && half > tolerance,
        "{earlier:e} a position earlier, {half:e} for half of them"
    );
}

#[test]
fn a_layer_at_the_last_position_of_the_longest_context_passes_every_check() {
    decode(Device::checked(), &spec(2, 64));
}

#[test]
#[ignore = "cargo xtask nightly: half a minute"]
fn a_layer_of_wide_heads_at_the_last_position_passes_every_check() {
    decode(Device::checked(), &spec(4, 128));
}

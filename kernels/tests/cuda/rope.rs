//! Rotary positions against the CPU engine's angles, and the write of K and V.

use sluice_kernels::cuda::rope::{RopeAngles, RopeKv};
use sluice_kernels::rope;
use sluice_link::model::{Dtype, ModelSpec, RopeScaling};

use super::device::Device;
use super::paged::{BLOCK, Heads, Paged};
use super::tolerances;
use super::values::{DTYPES, Random, assert_close, bits, decode, round};
use crate::specs;

#[test]
fn angles_are_those_of_the_cpu_engine_up_to_the_longest_context() {
    angles(&Device::fast(), 5);
}

pub fn angles(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let mut positions = vec![0, 1, 2, 3, 4095, 8192, 65_535, 100_000, 131_070, 131_071];
    positions.extend((0..100).map(|_| random.below(0..131_072)));
    let scaling = specs::LLAMA3_SCALING;
    let plain = specs::llama(Dtype::F32);
    let spec = ModelSpec { head_dim: 128, rope_theta: 500_000.0, rope_scaling: scaling, ..plain };
    angles_of(device, &spec, &positions);
}

/// The angles of a few random positions, for heads of random width.
pub fn some_angles(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let spec = ModelSpec {
        head_dim: 2 * random.below(1..129),
        rope_theta: random.choose(&[10_000.0, 500_000.0]),
        rope_scaling: random.choose(&[RopeScaling::None, specs::LLAMA3_SCALING]),
        ..specs::llama(Dtype::F32)
    };
    let positions: Vec<_> = (0..random.below(1..20)).map(|_| random.below(0..131_072)).collect();
    angles_of(device, &spec, &positions);
}

fn angles_of(device: &Device, spec: &ModelSpec, positions: &[u32]) {
    let frequencies = rope::frequencies(spec);
    let pairs = frequencies.len();
    let angles = device.reserve::<f32>(positions.len() * 2 * pairs);
    let plan = RopeAngles {
        positions: device.upload(positions),
        frequencies: device.upload(&frequencies),
        angles,
        rows: positions.len() as u32,
        pairs: pairs as u32,
    };
    device.run(&plan.plan());
    let got: Vec<f32> = device.download(angles, positions.len() * 2 * pairs);
    for (row, position) in positions.iter().enumerate() {
        let mut expected = vec![0.0; 2 * pairs];
        rope::angles(&frequencies, *position, &mut expected);
        let exact: Vec<_> = expected.iter().map(|x| f64::from(*x)).collect();
        // The CPU's angles are rounded, too.
        let bound = |_| tolerances::angle() + tolerances::F32;
        assert_close(&format!("position {position}"), &got[row * 2 * pairs..][..2 * pairs], &exact, bound);
    }
}

pub fn rope_kv(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let (dtype, dim) = (random.choose(&DTYPES), 8 * random.below(1..17) as usize);
    rope_kv_in(device, random, dtype, dim);
}

/// Runs the launch in a step that is stopped, in which it changes no block, and then in one that is not.
fn run_stopped_and_not(device: &Device, rope: RopeKv, dtype: Dtype, (paged, heads): (&Paged, Heads)) {
    let read = |id: &u32| device.download::<u8>(paged.arena.address(*id), heads.block_bytes(dtype));
    let blocks = || paged.ids.iter().flatten().map(read).collect::<Vec<_>>();
    let before = blocks();
    device.run(&RopeKv { stopped: device.upload(&[1u32]), ..rope }.plan(dtype).unwrap());
    assert!(blocks() == before, "a stopped step writes no block");
    device.run(&rope.plan(dtype).unwrap());
}

/// Some rows of heads that are `dim` wide.
pub fn rope_kv_in(device: &Device, mut random: Random, dtype: Dtype, dim: usize) {
    let kv_heads = random.below(1..4) as usize;
    let heads = Heads { heads: kv_heads * random.below(1..4) as usize, kv_heads, dim };
    // All of a head, a part of it, or nothing where positions are learned.
    let part = 8 * random.below(0..dim as u32 / 8 + 1) as usize;
    let rotary = random.choose(&[dim, dim, part]);
    let rows = random.below(1..20) as usize;
    let start = random.below(0..40) as usize;
    let paged = Paged::new(device, &mut random, dtype, heads, &[3, start + rows]);
    let strides =
        [heads.heads, kv_heads, kv_heads].map(|heads| heads * dim + 4 * random.below(0..3) as usize);
    let [queries, keys, values] = strides.map(|stride| random.normal(Dtype::F32, rows * stride));
    let angles = random.normal(Dtype::F32, rows * rotary.max(1));
    let positions: Vec<_> = (start as u32..).take(rows).collect();
    let output = device.reserve_as(dtype, rows * heads.heads * dim);
    let rope = RopeKv {
        arena: paged.arena,
        queries: device.upload(&queries),
        keys: device.upload(&keys),
        values: device.upload(&values),
        output,
        angles: if rotary == 0 { 0 } else { device.upload(&angles) },
        positions: device.upload(&positions),
        table_rows: device.upload(&vec![1u32; rows]),
        table: paged.table,
        stopped: device.upload(&[0u32]),
        columns: paged.columns,
        rows: rows as u32,
        heads: heads.heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
        rotary: rotary as u32,
        query_stride: strides[0] as u32,
        key_stride: strides[1] as u32,
        value_stride: strides[2] as u32,
        unused: 0,
    };
    run_stopped_and_not(device, rope, dtype, (&paged, heads));
    // Two products and a sum, each rounded: f32 is the reference, bit for bit.
    let rotated = |head: &[f32], row: usize| -> Vec<f32> {
        let (half, angles) = (rotary / 2, &angles[row * rotary..]);
        let mut result = head.to_vec();
        for i in 0..half {
            let (a, b, cosine, sine) = (head[i], head[half + i], angles[i], angles[half + i]);
            (result[i], result[half + i]) = (a * cosine - b * sine, b * cosine + a * sine);
        }
        result.iter().map(|x| round(dtype, *x)).collect()
    };
    let context = format!("{dtype:?} {heads:?}, {rotary} rotated");
    let got = device.download_as(dtype, output, rows * heads.heads * dim);
    let block = |id: u32| -> Vec<f32> {
        decode(dtype, &device.download::<u8>(paged.arena.address(id), heads.block_bytes(dtype)))
    };
    for row in 0..rows {
        for head in 0..heads.heads {
            let expected = rotated(&queries[row * strides[0] + head * dim..][..dim], row);
            assert_eq!(bits(&got[(row * heads.heads + head) * dim..][..dim]), bits(&expected), "{context}");
        }
        let position = start + row;
        let block = block(paged.ids[1][position / BLOCK]);
        for head in 0..kv_heads {
            let at = |second: usize| ((second * kv_heads + head) * BLOCK + position % BLOCK) * dim;
            let expected = rotated(&keys[row * strides[1] + head * dim..][..dim], row);
            assert_eq!(bits(&block[at(0)..][..dim]), bits(&expected), "{context}: K");
            let expected = values[row * strides[2] + head * dim..][..dim].iter().map(|x| round(dtype, *x));
            assert_eq!(bits(&block[at(1)..][..dim]), bits(&expected.collect::<Vec<_>>()), "{context}: V");
        }
    }
    // Positions before the step's and the other sequence keep their K.
    let before = block(paged.ids[0][0]);
    assert_eq!(bits(&before[..dim]), bits(&paged.keys[0][..dim]), "{context}: another sequence");
}

#[test]
fn heads_are_rotated_and_written_to_their_blocks_and_to_nothing_else() {
    (0..40).for_each(|seed| rope_kv(&Device::fast(), seed));
}

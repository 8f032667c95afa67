//! Attention over shuffled layer-blocks against f64.

use sluice_kernels::cuda::Address;
use sluice_kernels::cuda::attention::{
    Attention, AttentionF32, AttentionMerge, SPLIT, Score, Sequence, Work,
};
use sluice_kernels::cuda::memory::KvArena;
use sluice_link::model::Dtype;

use super::device::Device;
use super::device::gpu::on_gpu;
use super::paged::{Heads, Paged};
use super::tolerances::{self, AttentionSizes};
use super::values::{Random, assert_close};

/// What attention depends on besides its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub heads: Heads,
    pub dtype: Dtype,
    pub window: u32,
    pub scale: f32,
    pub soft_cap: Option<f32>,
}

/// Runs the attention of `sequences` (start, tokens) over `paged`; queries are `[tokens][heads][dim]`.
pub fn attend(
    device: &Device,
    rules: Rules,
    paged: &Paged,
    parts: &[(usize, usize)],
    queries: &[f32],
) -> Vec<f32> {
    let Heads { heads, kv_heads, dim } = rules.heads;
    let mut sequences = Vec::new();
    for (row, (start, tokens)) in (0..).zip(parts) {
        let token = sequences.last().map_or(0, |last: &Sequence| last.token + last.tokens);
        sequences.push(Sequence { token, tokens: *tokens as u32, position: *start as u32, table_row: row });
    }
    let output = device.reserve_as(rules.dtype, queries.len());
    let score = Score::new(rules.scale, rules.soft_cap);
    let queries_at = device.upload_as(rules.dtype, queries);
    if rules.dtype == Dtype::F32 {
        attend_f32(device, rules, paged, &sequences, (queries_at, output));
        return device.download(output, queries.len());
    }
    let work = Work::new(&sequences, rules.heads.group() as u32, rules.window);
    let count = work.items.len() + 1;
    let work = work.padded(count);
    let partial_rows = work.partial_rows.max(1) as usize * heads;
    let attention = Attention {
        arena: paged.arena,
        queries: queries_at,
        output,
        partial: device.reserve::<f32>(partial_rows * dim),
        partial_weights: device.reserve::<[f32; 2]>(partial_rows),
        table: paged.table,
        sequences: device.upload(&work.sequences),
        items: device.upload(&work.items),
        columns: paged.columns,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
        partial_tokens: work.merge_tokens.len() as u32,
        split: SPLIT,
        window: rules.window,
        score_scale: score.scale,
        score_cap: score.cap,
        unused: 0,
    };
    device.run(&attention.plan(rules.dtype, count as u32).unwrap());
    if !work.merge_tokens.is_empty() {
        let merge = AttentionMerge {
            partial: attention.partial,
            partial_weights: attention.partial_weights,
            output,
            tokens: device.upload(&work.merge_tokens),
            count: work.merge_tokens.len() as u32,
            heads: heads as u32,
            dim: dim as u32,
            split: SPLIT,
            window: rules.window,
            unused: 0,
        };
        device.run(&merge.plan(rules.dtype).unwrap());
    }
    device.download_as(rules.dtype, output, queries.len())
}

fn attend_f32(device: &Device, rules: Rules, paged: &Paged, sequences: &[Sequence], at: (Address, Address)) {
    let Heads { heads, kv_heads, dim } = rules.heads;
    let score = Score::new(rules.scale, rules.soft_cap);
    let each = |of: fn(&Sequence, u32) -> u32| -> Vec<u32> {
        sequences.iter().flat_map(|sequence| (0..sequence.tokens).map(move |i| of(sequence, i))).collect()
    };
    let positions = each(|sequence, i| sequence.position + i);
    let attention = AttentionF32 {
        arena: paged.arena,
        queries: at.0,
        output: at.1,
        positions: device.upload(&positions),
        table_rows: device.upload(&each(|sequence, _| sequence.table_row)),
        table: paged.table,
        columns: paged.columns,
        tokens: positions.len() as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
        window: rules.window,
        score_scale: score.scale,
        score_cap: score.cap,
    };
    device.run(&attention.plan().unwrap());
}

/// Attention of one query in f64, and the bound of each element.
fn exact(
    rules: Rules,
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    kv_head: usize,
    position: usize,
) -> (Vec<f64>, Vec<f64>) {
    let Heads { kv_heads, dim, .. } = rules.heads;
    let first = if rules.window == 0 { 0 } else { (position + 1).saturating_sub(rules.window as usize) };
    let row = |all: &[f32], at: usize| -> Vec<f64> {
        all[(at * kv_heads + kv_head) * dim..][..dim].iter().map(|x| f64::from(*x)).collect()
    };
    let (mut scores, mut largest_magnitude) = (Vec::new(), 0f64);
    for at in first..=position {
        let products: Vec<f64> = row(keys, at).iter().zip(query).map(|(k, q)| k * f64::from(*q)).collect();
        let scale = f64::from(rules.scale);
        let score = products.iter().sum::<f64>() * scale;
        largest_magnitude = largest_magnitude.max(products.iter().map(|x| x.abs()).sum::<f64>() * scale);
        scores.push(rules.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()));
    }
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let (mut sums, mut magnitudes, mut largest_value) = (vec![0.0; dim], vec![0.0; dim], 0f64);
    for (weight, at) in weights.iter().zip(first..) {
        for (i, value) in row(values, at).iter().enumerate() {
            sums[i] += weight / total * value;
            magnitudes[i] += weight / total * value.abs();
            largest_value = largest_value.max(value.abs());
        }
    }
    let seen = position + 1 - first;
    let bound = |(sum, value_magnitude): (&f64, &f64)| {
        let sizes =
            AttentionSizes { dim, seen, largest_magnitude, value_magnitude: *value_magnitude, largest_value };
        tolerances::attention(rules.dtype, sizes) + tolerances::rounding(rules.dtype, *sum)
    };
    let bounds = sums.iter().zip(&magnitudes).map(bound).collect();
    (sums, bounds)
}

/// Runs one case and compares every `stride`-th row of the results.
fn compare(device: &Device, rules: Rules, parts: &[(usize, usize)], random: &mut Random, stride: usize) {
    let lengths: Vec<_> = parts.iter().map(|(start, tokens)| start + tokens).collect();
    let paged = Paged::new(device, random, rules.dtype, rules.heads, &lengths);
    compare_over(device, rules, &paged, parts, random, stride);
}

fn compare_over(
    device: &Device,
    rules: Rules,
    paged: &Paged,
    parts: &[(usize, usize)],
    random: &mut Random,
    stride: usize,
) {
    let Heads { heads, dim, .. } = rules.heads;
    let tokens: usize = parts.iter().map(|(_, tokens)| tokens).sum();
    let queries = random.normal(rules.dtype, tokens * heads * dim);
    let got = attend(device, rules, paged, parts, &queries);
    let mut row = 0;
    for (sequence, (start, tokens)) in parts.iter().enumerate() {
        for position in *start..start + tokens {
            for head in 0..heads {
                if row % stride == 0 {
                    let query = &queries[row * dim..][..dim];
                    let kv_head = head / rules.heads.group();
                    let (keys, values) = (&paged.keys[sequence], &paged.values[sequence]);
                    let (exact, bounds) = exact(rules, query, keys, values, kv_head, position);
                    let context = format!("{rules:?}, position {position}, head {head}");
                    assert_close(&context, &got[row * dim..][..dim], &exact, |i| bounds[i]);
                }
                row += 1;
            }
        }
    }
}

fn random_case(device: &Device, seed: u64, dim: usize) {
    let mut random = Random(seed);
    let kv_heads = random.below(1..3) as usize;
    let heads = Heads { heads: kv_heads * random.below(1..6) as usize, kv_heads, dim };
    let scale = 1.0 / (dim as f32).sqrt();
    let rules = Rules {
        heads,
        dtype: random.choose(&[Dtype::Bf16, Dtype::F16, Dtype::F32]),
        window: random.choose(&[0, 0, 1, 40, 300]),
        scale,
        soft_cap: random.choose(&[None, None, Some(50.0), Some(1.5)]),
    };
    // A decode, and a chunk of a prefill.
    let parts = [
        (random.choose(&[0, 15, 100, 300, 600]), 1),
        (random.choose(&[0, 16, 250]), random.below(1..70) as usize),
    ];
    compare(device, rules, &parts, &mut random, 7);
}

/// Cases of [`small_case`]: four for each kernel.
pub const SMALL_CASES: u64 = 4 * 15;

/// A decode over two splits and a chunk of a prefill that crosses from one split to the next, in some kernel. Every
/// kernel meets a head that fills it and one that does not, windows, and soft caps.
pub fn small_case(device: &Device, seed: u64) {
    let mut random = Random(1000 + seed);
    let (variant, kernel) = (seed / 15, seed as usize % 15);
    let (dtype, width) = match kernel {
        0..7 => (Dtype::Bf16, WIDTHS[kernel]),
        7..14 => (Dtype::F16, WIDTHS[kernel - 7]),
        _ => (Dtype::F32, [40, 41, 256, 15][variant as usize]),
    };
    let dim = if variant % 2 == 0 { width } else { width - 8 };
    // More than eight rows of a decode are in both halves of a warp's rows, and those of the chunk in two blocks.
    let heads = Heads { heads: 11, kv_heads: 1, dim };
    let (window, soft_cap) = [(0, None), (40, Some(1.5)), (0, Some(50.0)), (257, None)][variant as usize];
    let rules = Rules { heads, dtype, window, scale: 1.0 / (dim as f32).sqrt(), soft_cap };
    compare(device, rules, &[(270, 1), (251, 7)], &mut random, 5);
}

/// Cases of [`tiny_case`]: sixteen for each kernel.
pub const TINY_CASES: u64 = 16 * 15;

/// A decode and a chunk of a prefill over a few blocks, in some kernel, for heads of random width and number.
pub fn tiny_case(device: &Device, seed: u64) {
    let mut random = Random(2000 + seed);
    let kernel = seed as usize % 15;
    let (dtype, dim) = match kernel {
        0..14 => {
            let (dtype, at) = if kernel < 7 { (Dtype::Bf16, kernel) } else { (Dtype::F16, kernel - 7) };
            let below = at.checked_sub(1).map_or(0, |narrower| WIDTHS[narrower]);
            (dtype, below + 8 * random.below(1..((WIDTHS[at] - below) / 8) as u32 + 1) as usize)
        }
        _ => (Dtype::F32, random.below(1..257) as usize),
    };
    let kv_heads = random.below(1..4) as usize;
    let heads = Heads { heads: kv_heads * random.below(1..5) as usize, kv_heads, dim };
    let scale = 1.0 / (dim as f32).sqrt();
    let window = random.choose(&[0, 0, 1, 9, 40]);
    let rules =
        Rules { heads, dtype, window, scale, soft_cap: random.choose(&[None, None, Some(50.0), Some(1.5)]) };
    let parts = [(random.below(0..50), 1), (random.below(0..30), random.below(1..20))];
    compare(device, rules, &parts.map(|(start, tokens)| (start as usize, tokens as usize)), &mut random, 3);
}

/// Widths of the kernels on tensor cores.
pub const WIDTHS: [usize; 7] = [32, 64, 80, 96, 112, 128, 256];

#[test]
fn attention_is_that_of_f64_for_every_width_of_heads() {
    let dims = [8, 16, 24, 32, 40, 48, 64, 72, 80, 88, 96, 104, 112, 120, 128, 160, 192, 200, 248, 256];
    for (seed, dim) in (0..).zip(dims) {
        random_case(&Device::fast(), seed, dim);
        random_case(&Device::fast(), 100 + seed, dim);
    }
}

#[test]
fn a_decode_at_the_last_position_of_the_longest_context_is_that_of_f64() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let heads = Heads { heads: 2, kv_heads: 1, dim: 32 };
        let rules = Rules { heads, dtype, window: 0, scale: 0.2, soft_cap: None };
        compare(&Device::fast(), rules, &[(131_071, 1)], &mut Random(300), 1);
    }
}

#[test]
fn a_decode_at_the_last_position_passes_every_check() {
    let heads = Heads { heads: 2, kv_heads: 1, dim: 32 };
    let rules = Rules { heads, dtype: Dtype::Bf16, window: 0, scale: 0.2, soft_cap: None };
    compare(&Device::checked(), rules, &[(131_071, 1)], &mut Random(301), 1);
}

#[test]
fn blocks_may_lie_beyond_4_gib_of_the_arena() {
    if on_gpu() {
        println!("skipped: a GPU has no memory at addresses of the test's choice");
        return;
    }
    let heads = Heads { heads: 2, kv_heads: 1, dim: 64 };
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let device = Device::fast();
        let mut random = Random(302);
        let block_bytes = heads.block_bytes(dtype) as u32;
        // Five chunks of 2 GiB, and the first and the last blocks of each.
        let arena = KvArena::new(1 << 40, 2 << 30, block_bytes);
        let ends = |chunk| [chunk * arena.per_chunk, (chunk + 1) * arena.per_chunk - 1];
        let order: Vec<_> = (0..5).rev().flat_map(ends).collect();
        let shape = (dtype, heads);
        // Only the blocks exist, so that any other address is a fault.
        let write = |address, block: &[u8]| device.place(address, block);
        let paged = Paged::in_blocks(&device, &mut random, shape, &[160], (arena, &order), write);
        let rules = Rules { heads, dtype, window: 0, scale: 0.2, soft_cap: None };
        compare_over(&device, rules, &paged, &[(140, 20)], &mut random, 1);
    }
}

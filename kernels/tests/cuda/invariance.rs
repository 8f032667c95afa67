//! Bits that must not depend on the batch, the chunking, the order of warps or the number of threads of the interpreter.

use sluice_kernels::cuda::gemm::{Epilogue, Gemm};
use sluice_link::model::Dtype;

use super::attention::{Rules, attend};
use super::device::Device;
use super::paged::{Heads, Paged};
use super::values::{Random, bits};

#[test]
fn a_row_of_a_product_has_the_same_bits_among_1_to_100_rows() {
    let mut random = Random(11);
    let (k, columns) = (200, 70);
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let device = Device::fast();
        let weights = device.upload_as(dtype, &random.normal(dtype, columns * k));
        let row = random.normal(dtype, k);
        let mut first = None;
        for rows in 1..=100 {
            let place = random.below(0..rows) as usize;
            let mut input = random.normal(dtype, rows as usize * k);
            input[place * k..][..k].copy_from_slice(&row);
            let output = device.reserve::<f32>(rows as usize * columns);
            let gemm = Gemm {
                input: device.upload_as(dtype, &input),
                weights,
                output,
                epilogue: Epilogue::default(),
                rows,
                columns: columns as u32,
                k: k as u32,
                output_stride: columns as u32,
            };
            device.run(&gemm.plan(dtype, Dtype::F32).unwrap());
            let all: Vec<f32> = device.download(output, rows as usize * columns);
            let here = bits(&all[place * columns..][..columns]);
            assert_eq!(*first.get_or_insert_with(|| here.clone()), here, "{dtype:?}: row {place} of {rows}");
        }
    }
}

/// Attention of positions `range` of one sequence of 600 tokens.
fn part(
    device: &Device,
    rules: Rules,
    paged: &Paged,
    queries: &[f32],
    range: std::ops::Range<usize>,
) -> Vec<f32> {
    let row = rules.heads.heads * rules.heads.dim;
    attend(device, rules, paged, &[(range.start, range.len())], &queries[range.start * row..range.end * row])
}

#[test]
fn a_token_attends_with_the_same_bits_in_a_prefill_in_chunks_and_alone() {
    let length = 600;
    let variants = [
        (Dtype::Bf16, 64, 0, None),
        (Dtype::F16, 40, 300, None),
        (Dtype::Bf16, 32, 0, Some(5.0)),
        (Dtype::F32, 8, 100, None),
    ];
    for (seed, (dtype, dim, window, soft_cap)) in (20..).zip(variants) {
        let mut random = Random(seed);
        let heads = Heads { heads: 3, kv_heads: 1, dim };
        let rules = Rules { heads, dtype, window, scale: 0.3, soft_cap };
        let device = Device::fast();
        let paged = Paged::new(&device, &mut random, dtype, heads, &[length]);
        let row = heads.heads * dim;
        let queries = random.normal(dtype, length * row);
        let whole = bits(&part(&device, rules, &paged, &queries, 0..length));
        for chunk in [19, 77] {
            let starts = (0..length).step_by(chunk);
            let chunks = starts
                .flat_map(|start| part(&device, rules, &paged, &queries, start..(start + chunk).min(length)));
            assert_eq!(bits(&chunks.collect::<Vec<_>>()), whole, "{rules:?}: chunks of {chunk}");
        }
        for position in [0, 15, 16, 31, 100, 255, 256, 299, 300, 511, 512, 599] {
            let alone = part(&device, rules, &paged, &queries, position..position + 1);
            assert_eq!(bits(&alone), whole[position * row..][..row], "{rules:?}: position {position}");
        }
    }
}

#[test]
fn the_order_of_warps_and_the_number_of_workers_change_no_bit() {
    let mut expected = None;
    for (workers, warp_order_seed) in [(1, 0), (1, 1), (1, 99), (2, 0), (3, 7)] {
        let mut device = Device::fast();
        (device.options.workers, device.options.warp_order_seed) = (workers, warp_order_seed);
        let mut random = Random(31);
        let heads = Heads { heads: 4, kv_heads: 2, dim: 48 };
        let rules = Rules { heads, dtype: Dtype::Bf16, window: 0, scale: 0.3, soft_cap: None };
        let paged = Paged::new(&device, &mut random, Dtype::Bf16, heads, &[601, 90]);
        let queries = random.normal(Dtype::Bf16, 91 * 4 * 48);
        let here = bits(&attend(&device, rules, &paged, &[(600, 1), (0, 90)], &queries));
        assert_eq!(
            *expected.get_or_insert_with(|| here.clone()),
            here,
            "{workers} workers, order {warp_order_seed}"
        );
    }
}

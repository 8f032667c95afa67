//! Embeddings and norms against f64.

use sluice_kernels::cuda::embedding::Embed;
use sluice_kernels::cuda::norm::Norm;
use sluice_link::model::Dtype;

use super::device::Device;
use super::tolerances;
use super::values::{DTYPES, Random, assert_close, bits};

pub fn embed(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let (dtype, width) = (random.choose(&DTYPES), 4 * random.below(1..90));
    embed_in(device, random, dtype, width);
}

/// The embeddings of some rows of `width` numbers.
pub fn embed_in(device: &Device, mut random: Random, dtype: Dtype, width: u32) {
    let (vocabulary, rows) = (random.below(3..50), random.below(1..9));
    let scale = random.choose(&[1.0f32, 7.5]);
    let table = random.normal(dtype, (vocabulary * width) as usize);
    let learned = (random.below(0..2) == 1).then(|| random.normal(dtype, (66 * width) as usize));
    let tokens: Vec<_> = (0..rows).map(|_| random.below(0..vocabulary)).collect();
    let positions: Vec<_> = (0..rows).map(|_| random.below(0..64)).collect();
    let output = device.reserve::<f32>((rows * width) as usize);
    let embed = Embed {
        table: device.upload_as(dtype, &table),
        learned: learned.as_ref().map_or(0, |learned| device.upload_as(dtype, learned)),
        output,
        tokens: device.upload(&tokens),
        positions: device.upload(&positions),
        width,
        offset: 2,
        scale,
        unused: 0,
    };
    device.run(&embed.plan(dtype, rows).unwrap());
    // The sums of two rounded numbers have one order, so f32 is the reference.
    let expected: Vec<f32> = (0..rows * width)
        .map(|at| {
            let (row, column) = ((at / width) as usize, at % width);
            let token = table[(tokens[row] * width + column) as usize] * scale;
            learned
                .as_ref()
                .map_or(token, |learned| token + learned[((positions[row] + 2) * width + column) as usize])
        })
        .collect();
    let got: Vec<f32> = device.download(output, (rows * width) as usize);
    assert_eq!(bits(&got), bits(&expected), "{dtype:?}, width {width}, scale {scale}");
}

#[test]
fn embeddings_are_the_tokens_rows_with_scale_and_learned_positions() {
    (0..20).for_each(|seed| embed(&Device::fast(), seed));
}

struct NormCase {
    weights: Dtype,
    output: Dtype,
    width: u32,
    rows: u32,
    layer_norm: bool,
    addend: bool,
    gathered: bool,
    gain_offset: f32,
}

pub fn norm(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let weights = random.choose(&DTYPES);
    let case = NormCase {
        weights,
        output: random.choose(&[weights, Dtype::F32]),
        width: random.choose(&[4, 8, 64, 100, 288, 576, 1024, 2052]),
        rows: random.below(1..5),
        layer_norm: random.below(0..2) == 1,
        addend: random.below(0..2) == 1,
        gathered: random.below(0..2) == 1,
        gain_offset: random.choose(&[0.0, 1.0]),
    };
    run_norm(device, seed, random, &case);
}

/// An RMSNorm of four rows.
pub fn plain_norm(device: &Device, weights: Dtype, output: Dtype, width: u32) {
    let case = NormCase {
        weights,
        output,
        width,
        rows: 4,
        layer_norm: false,
        addend: true,
        gathered: false,
        gain_offset: 0.0,
    };
    run_norm(device, 0, Random(0), &case);
}

fn run_norm(device: &Device, seed: u64, mut random: Random, case: &NormCase) {
    let (width, stored) = (case.width as usize, 6);
    let input = random.normal(Dtype::F32, stored * width);
    let addend = case.addend.then(|| random.normal(Dtype::F32, stored * width));
    let weight = random.normal(case.weights, width);
    let bias = case.layer_norm.then(|| random.normal(case.weights, width));
    // No row twice: with an addend a row changes.
    let order = random.permutation(stored as u32);
    let rows = case.gathered.then(|| &order[..case.rows as usize]);
    let output = device.reserve_as(case.output, case.rows as usize * width);
    let input_address = device.upload(&input);
    let norm = Norm {
        input: input_address,
        addend: addend.as_ref().map_or(0, |addend| device.upload(addend)),
        weight: device.upload_as(case.weights, &weight),
        bias: bias.as_ref().map_or(0, |bias| device.upload_as(case.weights, bias)),
        output,
        rows: rows.map_or(0, |rows| device.upload(rows)),
        width: case.width,
        epsilon: 1e-5,
        gain_offset: case.gain_offset,
        unused: 0,
    };
    device.run(&norm.plan(case.weights, case.output, case.rows).unwrap());
    let got = device.download_as(case.output, output, case.rows as usize * width);
    let after: Vec<f32> = device.download(input_address, stored * width);
    for row in 0..case.rows as usize {
        let from = rows.map_or(row, |rows| rows[row] as usize) * width;
        let sum =
            |i: usize| addend.as_ref().map_or(input[from + i], |addend| input[from + i] + addend[from + i]);
        let x: Vec<f32> = (0..width).map(sum).collect();
        assert_eq!(bits(&after[from..from + width]), bits(&x), "seed {seed}: the sum is stored");
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mean = if case.layer_norm { x.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let gain = 1.0 / (variance + f64::from(1e-5f32)).sqrt();
        let weight = |i: usize| f64::from(weight[i]) + f64::from(case.gain_offset);
        let bias = |i: usize| bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
        let exact: Vec<f64> = (0..width).map(|i| (x[i] - mean) * gain * weight(i) + bias(i)).collect();
        let average = x.iter().map(|x| x.abs()).sum::<f64>() / width as f64;
        assert_close(&format!("seed {seed}, row {row}"), &got[row * width..][..width], &exact, |i| {
            let magnitude = (x[i].abs() + average) * gain * weight(i).abs() + bias(i).abs();
            tolerances::norm(width, magnitude) + tolerances::rounding(case.output, exact[i])
        });
    }
}

#[test]
fn norms_are_those_of_f64_in_every_variant() {
    (0..40).for_each(|seed| norm(&Device::fast(), seed));
}

#[test]
fn the_norm_of_heads_may_be_in_place() {
    let mut random = Random(7);
    let (heads, width) = (6, 64);
    let device = Device::checked();
    let input = random.normal(Dtype::F32, heads * width);
    let weight = device.upload_as(Dtype::Bf16, &random.normal(Dtype::Bf16, width));
    let (there, apart) = (device.upload(&input), device.upload(&input));
    let norm = |input, output| {
        let norm = Norm { input, weight, output, width: width as u32, epsilon: 1e-6, ..Norm::default() };
        device.run(&norm.plan(Dtype::Bf16, Dtype::F32, heads as u32).unwrap());
        device.download::<f32>(output, heads * width)
    };
    let expected = norm(apart, device.reserve::<f32>(heads * width));
    assert_eq!(bits(&norm(there, there)), bits(&expected));
}

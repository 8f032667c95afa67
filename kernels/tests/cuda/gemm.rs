//! Products and epilogues against f64.

use sluice_kernels::cuda::gemm::{Activation, Elementwise, Epilogue, Gemm, Join};
use sluice_link::model::Dtype;

use super::device::Device;
use super::tolerances;
use super::values::{DTYPES, Random, assert_close};

const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Relu, Activation::Silu, Activation::GeluTanh, Activation::GeluErf];
const JOINS: [Join; 3] = [Join::Store, Join::Add, Join::Multiply];

/// What outputs hold before. Every format has it.
const UNTOUCHED: f32 = 77.0;

/// A random epilogue of `rows` x `columns` sums, and what it makes of them.
struct Case {
    activation: Activation,
    join: Join,
    bias: Option<Vec<f32>>,
    other: Vec<f32>,
    other_stride: usize,
}

impl Case {
    fn new(random: &mut Random, dtype: Dtype, rows: usize, columns: usize) -> Self {
        let other_stride = columns + random.below(0..5) as usize;
        Case {
            activation: random.choose(&ACTIVATIONS),
            join: random.choose(&JOINS),
            bias: (random.below(0..2) == 1).then(|| random.normal(dtype, columns)),
            other: random.normal(Dtype::F32, rows * other_stride),
            other_stride,
        }
    }

    fn epilogue(&self, device: &Device, dtype: Dtype) -> Epilogue {
        let bias = self.bias.as_ref().map_or(0, |bias| device.upload_as(dtype, bias));
        let epilogue = Epilogue::new(bias, self.activation);
        epilogue.join(self.join, device.upload(&self.other), self.other_stride as u32)
    }

    /// The exact result of a sum, and its bound, given the error of the sum.
    fn finish(&self, sum: f64, error: f64, (row, column): (usize, usize)) -> (f64, f64) {
        let x = sum + self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[column]));
        let error = error + tolerances::F32 * x.abs();
        let activated = activate(self.activation, x);
        // No activation has a slope above 1.13 (GELU's, at sqrt 2).
        let own = if self.activation == Activation::None { 0.0 } else { tolerances::activation(x) };
        let error = 1.13 * error + own;
        let other = f64::from(self.other[row * self.other_stride + column]);
        match self.join {
            Join::Store => (activated, error),
            Join::Add => (other + activated, error + tolerances::F32 * (other + activated).abs()),
            Join::Multiply => {
                (other * activated, (error + 2.0 * tolerances::F32 * activated.abs()) * other.abs())
            }
        }
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    let tanh_argument = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + tanh_argument.tanh()),
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
    }
}

/// The error function by its series, for |x| < 6 to 1e-10; beyond that it is 1 to 1e-15.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    // erf(x) = 2 / sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (1 3 5 ... (2n+1)): no cancellation.
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

pub fn product(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let dtype = random.choose(&DTYPES);
    let output_dtype = random.choose(&[dtype, Dtype::F32]);
    let unit = if dtype == Dtype::F32 { 1 } else { 8 };
    let (rows, columns) = (random.below(1..80) as usize, random.below(1..140) as usize);
    let k = (unit * random.below(1..260 / unit)) as usize;
    let output_stride = columns + random.below(0..5) as usize;
    let input = random.normal(dtype, rows * k);
    let weights = random.normal(dtype, columns * k);
    let case = Case::new(&mut random, dtype, rows, columns);
    let output = device.upload_as(output_dtype, &vec![UNTOUCHED; rows * output_stride]);
    let gemm = Gemm {
        input: device.upload_as(dtype, &input),
        weights: device.upload_as(dtype, &weights),
        output,
        epilogue: case.epilogue(device, dtype),
        rows: rows as u32,
        columns: columns as u32,
        k: k as u32,
        output_stride: output_stride as u32,
    };
    device.run(&gemm.plan(dtype, output_dtype).unwrap());
    let got = device.download_as(output_dtype, output, rows * output_stride);
    for row in 0..rows {
        let products = |column: usize| {
            let pairs = input[row * k..][..k].iter().zip(&weights[column * k..][..k]);
            pairs.map(|(a, b)| f64::from(*a) * f64::from(*b))
        };
        let results: Vec<_> = (0..columns)
            .map(|column| {
                let error = tolerances::product_sum(k, products(column).map(f64::abs).sum());
                case.finish(products(column).sum(), error, (row, column))
            })
            .collect();
        let exact: Vec<_> = results.iter().map(|(exact, _)| *exact).collect();
        let context = format!("seed {seed}: {rows} x {columns} x {k}, {:?} {:?}", case.activation, case.join);
        assert_close(&context, &got[row * output_stride..][..columns], &exact, |i| {
            results[i].1 + tolerances::rounding(output_dtype, results[i].0)
        });
        let between = &got[row * output_stride..][columns..output_stride];
        assert!(between.iter().all(|x| *x == UNTOUCHED), "{context}: what lies between rows stays");
    }
}

#[test]
fn products_are_those_of_f64_with_every_epilogue() {
    (0..40).for_each(|seed| product(&Device::fast(), seed));
}

pub fn elementwise(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let dtype = random.choose(&DTYPES);
    let output_dtype = random.choose(&[dtype, Dtype::F32]);
    let (rows, columns) = (random.below(1..6) as usize, random.below(1..700) as usize);
    let (input_stride, output_stride) =
        (columns + random.below(0..5) as usize, columns + random.below(0..5) as usize);
    // Wide enough to reach the tails of the activations.
    let input: Vec<_> = random.normal(Dtype::F32, rows * input_stride).iter().map(|x| 6.0 * x).collect();
    let case = Case::new(&mut random, dtype, rows, columns);
    let output = device.upload_as(output_dtype, &vec![UNTOUCHED; rows * output_stride]);
    let elementwise = Elementwise {
        input: device.upload(&input),
        output,
        epilogue: case.epilogue(device, dtype),
        rows: rows as u32,
        columns: columns as u32,
        input_stride: input_stride as u32,
        output_stride: output_stride as u32,
    };
    device.run(&elementwise.plan(dtype, output_dtype).unwrap());
    let got = device.download_as(output_dtype, output, rows * output_stride);
    for row in 0..rows {
        let x = |column| f64::from(input[row * input_stride + column]);
        let results: Vec<_> = (0..columns).map(|column| case.finish(x(column), 0.0, (row, column))).collect();
        let exact: Vec<_> = results.iter().map(|(exact, _)| *exact).collect();
        let context = format!("seed {seed}: {dtype:?}, {:?} {:?}", case.activation, case.join);
        assert_close(&context, &got[row * output_stride..][..columns], &exact, |i| {
            results[i].1 + tolerances::rounding(output_dtype, results[i].0)
        });
        let between = &got[row * output_stride..][columns..output_stride];
        assert!(between.iter().all(|x| *x == UNTOUCHED), "{context}: what lies between rows stays");
    }
}

#[test]
fn epilogues_of_foreign_products_are_those_of_f64() {
    (0..40).for_each(|seed| elementwise(&Device::fast(), seed));
}

//! How far a kernel's results may be from the exact ones: bounds by arithmetic, stated before any kernel was written.
//!
//! Every reference is computed in f64 from inputs that the kernel's number format holds exactly. What remains is the
//! rounding of the kernel. `u` is the unit roundoff of a format, the largest relative error of one rounding to nearest:
//! 2^-24 for f32, 2^-11 for f16, 2^-8 for bf16 (IEEE 754; 24, 11 and 8 bits of significand).
//!
//! A sum of n terms in f32, in any order and with any grouping, is off by at most (n - 1) u times the sum of the terms'
//! magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2). Tensor cores truncate where
//! other units round, so one addition may be off by two units (Fasi et al. 2021, PeerJ CS 7:e330): `SUM`.

use sluice_link::model::Dtype;

/// Unit roundoff of f32.
pub const F32: f64 = 1.0 / (1u64 << 24) as f64;

/// Error per term of a sum in f32 that a tensor core may have computed: two units, twice as large as when rounded.
pub const SUM: f64 = 4.0 * F32;

/// Relative error of `ex2.approx.ftz.f32`: 2^-22 (PTX ISA 8.0, 9.7.3.20); two roundings more where its argument is
/// a product.
pub const EXP2: f64 = 4.0 * F32;

/// Unit roundoff of a format.
pub fn unit(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => F32,
        Dtype::F16 => 1.0 / f64::from(1u32 << 11),
        Dtype::Bf16 => 1.0 / f64::from(1u32 << 8),
    }
}

/// Largest error of rounding `value` to `dtype`. Below 2^-14, numbers of f16 are 2^-24 apart.
pub fn rounding(dtype: Dtype, value: f64) -> f64 {
    let floor = if dtype == Dtype::F16 { 1.0 / f64::from(1u32 << 25) } else { f64::from(f32::MIN_POSITIVE) };
    (unit(dtype) * value.abs()).max(floor)
}

/// A sum of `terms` products whose magnitudes add up to `magnitude`, in f32.
pub fn product_sum(terms: usize, magnitude: f64) -> f64 {
    SUM * terms as f64 * magnitude
}

/// A normalized element: `magnitude` is |x| + |mean| of the row, times gain and weight. The variance is a sum of
/// `width` squares, of which the square root halves the error; the mean is another such sum. Eight more roundings:
/// difference, square, division, epsilon, root, reciprocal and two products.
pub fn norm(width: usize, magnitude: f64) -> f64 {
    (1.5 * width as f64 + 8.0) * F32 * magnitude
}

/// Cosine or sine of an f32 angle of less than 2^17. The angle less a multiple of a quarter turn is off by at most
/// 3 roundings of numbers below 1, and the polynomial by at most two units of a result below 1.
pub fn angle() -> f64 {
    5.0 * F32
}

/// An activation of `x`: SiLU and GELU are x times a share between 0 and 1. The share has the error of one power, whose
/// argument has a relative error of 4 units, of a sum and of a quotient. The tail of erf and tanh is cancelled, so the
/// error is one of |x|, not of the result.
pub fn activation(x: f64) -> f64 {
    let argument = 4.0 * F32 * x.abs().min(128.0) * 4.0;
    (argument + EXP2 + 4.0 * F32) * x.abs()
}

/// What the bound of an attention's element depends on.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    /// Width of a head.
    pub dim: usize,
    /// Positions that the query sees.
    pub seen: usize,
    /// Largest sum of |q k| over a position's dimensions, after scaling.
    pub largest_magnitude: f64,
    /// Sum of weight times |v|, with weights that add up to 1.
    pub value_magnitude: f64,
    /// Largest |v|.
    pub largest_value: f64,
}

/// An element of attention, before it is rounded to its format.
///
/// A score is off by a sum of `dim` products and by scaling, cap and subtraction (8 roundings), which multiplies its
/// weight by at most 1 + that error, above and below the fraction: factor 2. Weights are rounded to the format before
/// they meet V, not in their sum. Sums over positions are in f32. In f16, a weight below 2^-14 of the largest has an
/// absolute error, which counts for each position.
pub fn attention(dtype: Dtype, sizes: AttentionSizes) -> f64 {
    let score = (SUM * sizes.dim as f64 + 8.0 * F32) * sizes.largest_magnitude + EXP2;
    let weights = if dtype == Dtype::F32 { F32 } else { unit(dtype) };
    let sums = 2.0 * SUM * sizes.seen as f64;
    let tiny = if dtype == Dtype::F16 { sizes.seen as f64 / f64::from(1u32 << 25) } else { 0.0 };
    (2.0 * score + weights + sums) * sizes.value_magnitude + tiny * sizes.largest_value
}

/// Logits of a model with `layers` layers, as a share of their spread, against a reference that rounds to the model's
/// format at the same places.
///
/// Without f32 errors both would be equal. With them, a number close to the middle of two numbers of the format may
/// become the other one: a step of two units. The longest way through a layer has six such places: the input of Q, K
/// and V; Q, K and V; the weights of attention, which the reference does not round at all; the input of the output's
/// product; the input of the MLP; its inner values. The input of the head is one more. As a bound, each place moves all
/// of its numbers by a full step in one direction, and a product passes the relative error on. In f32 what counts is
/// the error of sums, with terms that are as often above as below: 1e-4, as for the CPU engine.
pub fn logits(dtype: Dtype, layers: usize) -> f64 {
    let step = 2.0 * unit(dtype);
    if dtype == Dtype::F32 { 1e-4 } else { (6 * layers + 1) as f64 * step }
}

#[test]
fn a_unit_is_the_error_halfway_between_two_numbers_and_no_rounding_exceeds_it() {
    use half::{bf16, f16};
    let halfway = |dtype| 1.0 + unit(dtype);
    assert_eq!(bf16::from_f64(halfway(Dtype::Bf16)), bf16::ONE, "to even");
    assert!(bf16::from_f64(halfway(Dtype::Bf16) * 1.000_001) > bf16::ONE);
    assert_eq!(f16::from_f64(halfway(Dtype::F16)), f16::ONE, "to even");
    assert!(f16::from_f64(halfway(Dtype::F16) * 1.000_001) > f16::ONE);
    assert_eq!(halfway(Dtype::F32) as f32, 1.0, "to even");
    for step in 1..5000 {
        let value = f64::from(step) * 1.37e-4;
        assert!((f64::from(bf16::from_f64(value)) - value).abs() <= rounding(Dtype::Bf16, value));
        assert!((f64::from(f16::from_f64(value)) - value).abs() <= rounding(Dtype::F16, value));
        let tiny = value * 1e-5;
        assert!((f64::from(f16::from_f64(tiny)) - tiny).abs() <= rounding(Dtype::F16, tiny));
    }
}

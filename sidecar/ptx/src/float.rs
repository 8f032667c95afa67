//! Arithmetic of floats that gives the same bits on every machine: NaN, halves, directed rounding, and the functions
//! that a GPU approximates. The latter are computed in f64 and rounded once, so they are closer to the true value than
//! a GPU's; the last bits of a GPU are its own.

/// NaN as f32 arithmetic of PTX returns it.
pub(crate) const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// `x`, or PTX's NaN for any NaN. Compared as bits: the compiler takes one NaN to be as good as another.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { NAN.to_bits() } else { bits })
}

/// `x`, or zero of its sign for a subnormal: `.ftz`.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { x }
}

/// `x` within [0, 1], and 0 for NaN: `.sat`.
#[inline(always)]
pub(crate) fn saturate(x: f32) -> f32 {
    if x > 0.0 { if x < 1.0 { x } else { 1.0 } } else { 0.0 }
}

/// The smaller one; -0 is below +0, and a number wins over NaN.
#[inline(always)]
pub(crate) fn min(a: f32, b: f32) -> f32 {
    let equal = f32::from_bits(a.to_bits() | b.to_bits());
    let other = if a.is_nan() { b } else { a };
    canonical(if a < b {
        a
    } else if b < a {
        b
    } else if a == b {
        equal
    } else {
        other
    })
}

/// The larger one, as [`min`].
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    let equal = f32::from_bits(a.to_bits() & b.to_bits());
    let other = if a.is_nan() { b } else { a };
    canonical(if a > b {
        a
    } else if b > a {
        b
    } else if a == b {
        equal
    } else {
        other
    })
}

/// The smaller one of f64, as [`min`].
#[inline(always)]
pub(crate) fn min_f64(a: f64, b: f64) -> f64 {
    let equal = f64::from_bits(a.to_bits() | b.to_bits());
    if a < b {
        a
    } else if b < a {
        b
    } else if a == b {
        equal
    } else if a.is_nan() {
        b
    } else {
        a
    }
}

/// The larger one of f64, as [`min`].
#[inline(always)]
pub(crate) fn max_f64(a: f64, b: f64) -> f64 {
    let equal = f64::from_bits(a.to_bits() & b.to_bits());
    if a > b {
        a
    } else if b > a {
        b
    } else if a == b {
        equal
    } else if a.is_nan() {
        b
    } else {
        a
    }
}

/// `a + b`, and what rounding has cut off.
#[inline(always)]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// Directions of rounding other than to nearest even.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toward {
    Zero,
    Down,
    Up,
}

/// `a * b + c` rounded once to f32 in a direction. The product of two f32 is exact in f64.
#[inline(always)]
pub(crate) fn fma_toward(a: f32, b: f32, c: f32, toward: Toward) -> f32 {
    let (sum, error) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    let near = sum as f32;
    if !near.is_finite() && sum.is_infinite() || sum.is_nan() {
        return canonical(near);
    }
    // The sign of what `near` has too much.
    let excess = f64::from(near) - sum - error;
    let too_large = excess > 0.0;
    let too_small = excess < 0.0;
    let down = toward == Toward::Down || toward == Toward::Zero && sum > 0.0;
    let up = toward == Toward::Up || toward == Toward::Zero && sum < 0.0;
    if down && too_large {
        near.next_down()
    } else if up && too_small {
        near.next_up()
    } else {
        near
    }
}

/// `a * b + c` in f64, rounded to odd where it is not exact, so that a second rounding to fewer bits is exact.
#[inline(always)]
pub(crate) fn fma_to_odd(a: f32, b: f32, c: f32) -> f64 {
    let (sum, error) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    if error == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

/// bf16 as f32.
#[inline(always)]
pub(crate) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to the nearest bf16, ties to even.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if x.is_nan() { 0x7fff } else { rounded }
}

/// f16 as f32.
#[inline(always)]
pub(crate) fn from_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    // The exponent is moved by a product, which makes subnormal numbers right as well: 2^112.
    let finite = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let special = if magnitude == 0x7c00 { f32::INFINITY } else { NAN };
    let value = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(value.to_bits() | sign)
}

/// f32 to the nearest f16, ties to even.
#[inline(always)]
pub(crate) fn to_f16(x: f32) -> u16 {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let sign = (x.to_bits() >> 16 & 0x8000) as u16;
    let normal =
        (magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)).wrapping_sub(0x3800_0000) >> 13) as u16;
    // A subnormal f16 is a multiple of 2^-24: adding 0.5 leaves it in the lowest bits of the sum, rounded.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000) as u16;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let bounded = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    if magnitude > 0x7f80_0000 { 0x7fff } else { sign | bounded }
}

/// f32 to f16 toward zero.
pub(crate) fn to_f16_toward_zero(x: f32) -> u16 {
    let near = to_f16(x);
    let away = !x.is_nan() && from_f16(near).abs() > x.abs() && x.is_finite();
    if away { near - 1 } else { near }
}

/// f32 to bf16 toward zero.
pub(crate) fn to_bf16_toward_zero(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { (x.to_bits() >> 16) as u16 }
}

/// f32 to TF32, ties away from zero: the lower 13 bits are zero.
pub(crate) fn to_tf32(x: f32) -> f32 {
    if x.is_nan() { NAN } else { f32::from_bits(x.to_bits().wrapping_add(0x1000) & 0xffff_e000) }
}

/// f64 to f32 with an odd last bit where that is not exact: what [`to_f16`] and [`to_bf16`] round once.
pub(crate) fn f64_to_odd_f32(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || !near.is_finite() || near.to_bits() & 1 == 1 {
        return near;
    }
    let up = f64::from(near).abs() < x.abs();
    f32::from_bits(if up { near.to_bits() + 1 } else { near.to_bits() - 1 })
}

/// 1.5 * 2^52: adding and subtracting it rounds a small f64 to an integer, ties to even.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// 2^x of an f64 within f64's normal range of exponents.
#[inline(always)]
fn exp2(x: f64) -> f64 {
    // Taylor coefficients of 2^f: ln(2)^k / k!. The remainder for |f| <= 0.5 is below 1e-13.
    const C: [f64; 11] = [
        1.0,
        std::f64::consts::LN_2,
        0.240_226_506_959_100_7,
        0.055_504_108_664_821_58,
        0.009_618_129_107_628_477,
        0.001_333_355_814_642_844_3,
        0.000_154_035_303_933_816_1,
        1.525_273_380_405_984e-5,
        1.321_548_679_014_431e-6,
        1.017_808_600_923_97e-7,
        7.054_911_620_801_123e-9,
    ];
    let shifted = x + ROUNDER;
    let f = x - (shifted - ROUNDER);
    let mut sum = C[10];
    for k in (0..10).rev() {
        sum = sum * f + C[k];
    }
    // The integer is in the lowest bits of `shifted`; the sum keeps 11 bits of it for the exponent.
    f64::from_bits(sum.to_bits().wrapping_add(shifted.to_bits() << 52))
}

/// `ex2.approx.f32`.
#[inline(always)]
pub(crate) fn ex2(x: f32) -> f32 {
    let bounded = x.clamp(-200.0, 200.0);
    canonical(if x.is_nan() { x } else { exp2(f64::from(bounded)) as f32 })
}

/// `lg2.approx.f32`.
#[inline(always)]
pub(crate) fn lg2(x: f32) -> f32 {
    let bits = f64::from(x).to_bits();
    // The mantissa within [sqrt(1/2), sqrt(2)) and its exponent.
    let carried = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let exponent = (carried as i64 >> 52) as i32;
    let m = f64::from_bits(bits.wrapping_sub((exponent as i64 as u64) << 52));
    // log2(m) = 2 / ln(2) * atanh(s).
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    let mut sum = 1.0 / 15.0;
    for k in (0..7).rev() {
        sum = sum * q + 1.0 / f64::from(2 * k + 1);
    }
    let value = f64::from(exponent) + s * sum * (2.0 * std::f64::consts::LOG2_E);
    let finite = if x > 0.0 { value as f32 } else { NAN };
    if x == 0.0 {
        f32::NEG_INFINITY
    } else if x == f32::INFINITY {
        x
    } else {
        finite
    }
}

/// Sine and cosine of `x`.
#[inline(always)]
fn sine_cosine(x: f32) -> (f32, f32) {
    const HALF_PI_HIGH: f64 = std::f64::consts::FRAC_PI_2;
    const HALF_PI_LOW: f64 = 6.123_233_995_736_766e-17;
    let x = f64::from(x);
    let quarter = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let n = quarter - ROUNDER;
    let r = (x - n * HALF_PI_HIGH) - n * HALF_PI_LOW;
    let r = if r.abs() <= 1.0 { r } else { 0.0 };
    let q = r * r;
    let (mut sine, mut cosine) = (1.0, 1.0);
    for k in (1..8).rev() {
        let k = f64::from(k);
        sine = 1.0 - sine * q * (1.0 / (2.0 * k * (2.0 * k + 1.0)));
        cosine = 1.0 - cosine * q * (1.0 / (2.0 * k * (2.0 * k - 1.0)));
    }
    let (sine, cosine) = ((sine * r) as f32, cosine as f32);
    match quarter.to_bits() & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// `sin.approx.f32`.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    if x.is_finite() { sine_cosine(x).0 } else { NAN }
}

/// `cos.approx.f32`.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    if x.is_finite() { sine_cosine(x).1 } else { NAN }
}

/// `tanh.approx.f32`.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let wide = f64::from(x.clamp(-20.0, 20.0));
    let power = exp2(wide * (2.0 * std::f64::consts::LOG2_E));
    let large = (power - 1.0) / (power + 1.0);
    let small = wide - wide * wide * wide / 3.0;
    let value = if wide.abs() < 1e-4 { small } else { large } as f32;
    if x.is_nan() { NAN } else { value }
}

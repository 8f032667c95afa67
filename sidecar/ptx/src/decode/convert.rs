//! `cvt`. The destination register may be wider than its type; the value is then extended.
#![allow(clippy::unnecessary_cast, reason = "macros make one form for each type")]

use super::integer::for_integers;
use super::{Decoded, Decoder};
use crate::float::{self, canonical, flush, from_bf16, from_f16, saturate, to_bf16, to_f16};
use crate::instruction::Instruction;
use crate::lanes::Lane;
use crate::operation::Operation;
use crate::operation::{binary, unary};
use crate::statement::{Operand, Statement};
use crate::types::{Ty, Width};

/// Modifiers of a conversion.
#[derive(Clone, Copy)]
struct Modes {
    /// `rn`, `rz`, `rm`, `rp`, `rna`, or one of those to an integer: `rni`, `rzi`, `rmi`, `rpi`.
    rounding: Option<&'static str>,
    flush: bool,
    saturate: bool,
    relu: bool,
}

impl Decoder<'_> {
    pub(super) fn convert(&mut self, s: &mut Statement) -> Decoded {
        if s.name != "cvt" {
            return Ok(None);
        }
        let (from, to) = (s.take_type()?, s.take_type()?);
        let rounding = s.take_one(&["rni", "rzi", "rmi", "rpi", "rna", "rn", "rz", "rm", "rp"]);
        let modes = Modes { rounding, flush: s.take("ftz"), saturate: s.take("sat"), relu: s.take("relu") };
        if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
            let operation = pair(from, to, modes).ok_or("a conversion of this kind")?;
            return self.arithmetic(s, operation, &[to, from, from]);
        }
        s.finish(2)?;
        let widths = [Width::W16, Width::W32, Width::W64];
        let natural = from.width();
        let at_least = &widths[widths.iter().position(|width| *width == natural).unwrap_or(0)..];
        let a = self.scope.source(s.operand(1)?, from, at_least)?;
        let operand = s.operand(0)?;
        let width = match operand {
            Operand::Name(name) => self.scope.register(name).map_or(to.width(), |found| found.0),
            _ => to.width(),
        };
        if width == Width::Pred || width_bits(width) < width_bits(to.width()) {
            return Err("the destination is smaller than its type".into());
        }
        let d = self.register(operand, width)?;
        let operation = one(from, to, width, modes).ok_or("a conversion of this kind")?;
        Ok(Some(Instruction { d, a, ..self.plain(operation) }))
    }
}

fn width_bits(width: Width) -> u32 {
    match width {
        Width::Pred => 1,
        Width::W16 => 16,
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

fn is_float(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::Bf16 | Ty::F32 | Ty::Tf32 | Ty::F64)
}

fn one(from: Ty, to: Ty, width: Width, modes: Modes) -> Option<Operation> {
    match (is_float(from), is_float(to)) {
        (false, false) if modes.rounding.is_none() && !modes.flush && !modes.relu => {
            if modes.saturate {
                integers_saturating(from, to)
            } else {
                integers(from, to, width)
            }
        }
        (false, true) if !modes.flush && !modes.saturate && !modes.relu => integer_to_float(from, to, modes),
        (true, false) if !modes.relu => float_to_integer(from, to, modes),
        (true, true) => floats(from, to, modes),
        _ => None,
    }
}

/// Evaluates `$make` with `$T` as the integer type `$ty`, of 8 bits as well.
macro_rules! for_all_integers {
    ($ty:expr, $T:ident => $make:expr) => {
        match $ty {
            Ty::U8 | Ty::B8 => { type $T = u8; Some($make) }
            Ty::S8 => { type $T = i8; Some($make) }
            other => for_integers!(other, $T => $make),
        }
    };
}

/// Truncates to `to`, then extends by the sign of `to` to the register.
fn integers(from: Ty, to: Ty, width: Width) -> Option<Operation> {
    // A narrowing conversion does not depend on the sign of its source, so unsigned forms do.
    let from = if to.bytes() <= from.bytes() { from.bits() } else { from };
    match (width, to) {
        (Width::W64, Ty::S8) => for_all_integers!(from, T => unary(|a: T| i64::from(a as i8))),
        (Width::W64, Ty::S16) => for_all_integers!(from, T => unary(|a: T| i64::from(a as i16))),
        (Width::W64, Ty::S32) => for_all_integers!(from, T => unary(|a: T| i64::from(a as i32))),
        (Width::W64, Ty::U8) => for_all_integers!(from, T => unary(|a: T| u64::from(a as u8))),
        (Width::W64, Ty::U16) => for_all_integers!(from, T => unary(|a: T| u64::from(a as u16))),
        (Width::W64, Ty::U32) => for_all_integers!(from, T => unary(|a: T| u64::from(a as u32))),
        (Width::W64, _) => for_all_integers!(from, T => unary(|a: T| a as u64)),
        (Width::W32, Ty::S8) => for_all_integers!(from, T => unary(|a: T| i32::from(a as i8))),
        (Width::W32, Ty::S16) => for_all_integers!(from, T => unary(|a: T| i32::from(a as i16))),
        (Width::W32, Ty::U8) => for_all_integers!(from, T => unary(|a: T| u32::from(a as u8))),
        (Width::W32, Ty::U16) => for_all_integers!(from, T => unary(|a: T| u32::from(a as u16))),
        (Width::W32, _) => for_all_integers!(from, T => unary(|a: T| a as u32)),
        (_, Ty::S8) => for_all_integers!(from, T => unary(|a: T| i16::from(a as i8))),
        (_, Ty::U8) => for_all_integers!(from, T => unary(|a: T| u16::from(a as u8))),
        _ => for_all_integers!(from, T => unary(|a: T| a as u16)),
    }
}

/// The nearest value of the destination's type.
fn integers_saturating(from: Ty, to: Ty) -> Option<Operation> {
    macro_rules! clamp {
        ($D:ty) => {
            for_all_integers!(from, T => unary(|a: T| {
                (a as i128).clamp(<$D>::MIN as i128, <$D>::MAX as i128) as $D
            }))
        };
    }
    match to {
        Ty::U8 => clamp!(u8),
        Ty::S8 => clamp!(i8),
        Ty::U16 => clamp!(u16),
        Ty::S16 => clamp!(i16),
        Ty::U32 => clamp!(u32),
        Ty::S32 => clamp!(i32),
        Ty::U64 => clamp!(u64),
        Ty::S64 => clamp!(i64),
        _ => None,
    }
}

fn integer_to_float(from: Ty, to: Ty, modes: Modes) -> Option<Operation> {
    if modes.rounding != Some("rn") {
        return None;
    }
    match to {
        Ty::F32 => for_all_integers!(from, T => unary(|a: T| a as f32)),
        Ty::F64 => for_all_integers!(from, T => unary(|a: T| a as f64)),
        Ty::F16 => for_all_integers!(from, T => unary(|a: T| to_f16(float::f64_to_odd_f32(a as f64)))),
        _ => None,
    }
}

/// Beyond the range the nearest integer, and 0 for NaN; to 64 bits NaN is the number with only the highest bit.
fn float_to_integer(from: Ty, to: Ty, modes: Modes) -> Option<Operation> {
    macro_rules! rounded {
        ($round:expr) => {
            match from {
                Ty::F32 if modes.flush => whole(to, move |a: f32| $round(f64::from(flush(a)))),
                Ty::F32 => whole(to, move |a: f32| $round(f64::from(a))),
                Ty::F64 => whole(to, move |a: f64| $round(a)),
                Ty::F16 => whole(to, move |a: u16| $round(f64::from(from_f16(a)))),
                Ty::Bf16 => whole(to, move |a: u16| $round(f64::from(from_bf16(a)))),
                _ => None,
            }
        };
    }
    match modes.rounding? {
        "rni" => rounded!(f64::round_ties_even),
        "rzi" => rounded!(f64::trunc),
        "rmi" => rounded!(f64::floor),
        "rpi" => rounded!(f64::ceil),
        _ => None,
    }
}

fn whole<A: Lane>(to: Ty, f: impl Fn(A) -> f64 + Copy) -> Option<Operation> {
    Some(match to {
        Ty::U8 => unary(move |a: A| f(a) as u8),
        Ty::S8 => unary(move |a: A| f(a) as i8),
        Ty::U16 => unary(move |a: A| f(a) as u16),
        Ty::S16 => unary(move |a: A| f(a) as i16),
        Ty::U32 => unary(move |a: A| f(a) as u32),
        Ty::S32 => unary(move |a: A| f(a) as i32),
        Ty::U64 => unary(move |a: A| if f(a).is_nan() { 1 << 63 } else { f(a) as u64 }),
        Ty::S64 => unary(move |a: A| if f(a).is_nan() { i64::MIN } else { f(a) as i64 }),
        _ => return None,
    })
}

fn floats(from: Ty, to: Ty, modes: Modes) -> Option<Operation> {
    let Modes { rounding, flush: flushes, saturate: saturates, relu } = modes;
    Some(match (from, to, rounding) {
        (Ty::F32, Ty::F32, rounding) if !relu => same(rounding, flushes, saturates)?,
        (Ty::F64, Ty::F64, Some("rni")) if !saturates => unary(f64::round_ties_even),
        (Ty::F64, Ty::F64, Some("rzi")) if !saturates => unary(f64::trunc),
        (Ty::F64, Ty::F64, Some("rmi")) if !saturates => unary(f64::floor),
        (Ty::F64, Ty::F64, Some("rpi")) if !saturates => unary(f64::ceil),
        (Ty::F32, Ty::F64, None) if flushes => unary(|a: f32| f64::from(flush(a))),
        (Ty::F32, Ty::F64, None) => unary(|a: f32| f64::from(a)),
        (Ty::F64, Ty::F32, Some("rn")) if flushes => unary(|a: f64| flush(canonical(a as f32))),
        (Ty::F64, Ty::F32, Some("rn")) if saturates => unary(|a: f64| saturate(a as f32)),
        (Ty::F64, Ty::F32, Some("rn")) => unary(|a: f64| canonical(a as f32)),
        (Ty::F32, Ty::Tf32, Some("rna")) if !saturates && !relu => unary(float::to_tf32),
        (Ty::F16, Ty::F32, None) => unary(from_f16),
        (Ty::Bf16, Ty::F32, None) => unary(from_bf16),
        (Ty::F16, Ty::F64, None) => unary(|a: u16| f64::from(from_f16(a))),
        (Ty::F32, Ty::F16, Some("rn")) if saturates => unary(|a: f32| to_f16(saturate(a))),
        (Ty::F32, Ty::F16, Some("rn")) if relu => unary(|a: f32| to_f16(rectify(a))),
        (Ty::F32, Ty::F16, Some("rn")) => unary(to_f16),
        (Ty::F32, Ty::F16, Some("rz")) if !relu && !saturates => unary(float::to_f16_toward_zero),
        (Ty::F32, Ty::Bf16, Some("rn")) if relu => unary(|a: f32| to_bf16(rectify(a))),
        (Ty::F32, Ty::Bf16, Some("rn")) if !saturates => unary(to_bf16),
        (Ty::F32, Ty::Bf16, Some("rz")) if !relu && !saturates => unary(float::to_bf16_toward_zero),
        (Ty::F64, Ty::F16, Some("rn")) if !saturates && !relu => {
            unary(|a: f64| to_f16(float::f64_to_odd_f32(a)))
        }
        _ => return None,
    })
}

/// f32 to f32: to an integer, or only `.ftz` and `.sat`.
fn same(rounding: Option<&str>, flushes: bool, saturates: bool) -> Option<Operation> {
    macro_rules! finish {
        ($f:expr) => {
            match (flushes, saturates) {
                (false, false) => unary(move |a: f32| canonical($f(a))),
                (true, false) => unary(move |a: f32| canonical($f(flush(a)))),
                (false, true) => unary(move |a: f32| saturate($f(a))),
                (true, true) => unary(move |a: f32| saturate($f(flush(a)))),
            }
        };
    }
    Some(match rounding {
        None => finish!(|a: f32| a),
        Some("rni") => finish!(f32::round_ties_even),
        Some("rzi") => finish!(f32::trunc),
        Some("rmi") => finish!(f32::floor),
        Some("rpi") => finish!(f32::ceil),
        Some(_) => return None,
    })
}

/// `.relu`: zero in place of what is negative; NaN stays.
#[inline(always)]
fn rectify(a: f32) -> f32 {
    if a > 0.0 || a.is_nan() { a } else { 0.0 }
}

/// Two f32 to a pair of halves; the first operand is the upper half.
fn pair(from: Ty, to: Ty, modes: Modes) -> Option<Operation> {
    if from != Ty::F32 || modes.flush || modes.saturate {
        return None;
    }
    let join = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
    Some(match (to, modes.rounding?, modes.relu) {
        (Ty::Bf16x2, "rn", false) => binary(move |a: f32, b: f32| join(to_bf16(a), to_bf16(b))),
        (Ty::F16x2, "rn", false) => binary(move |a: f32, b: f32| join(to_f16(a), to_f16(b))),
        (Ty::Bf16x2, "rn", true) => {
            binary(move |a: f32, b: f32| join(to_bf16(rectify(a)), to_bf16(rectify(b))))
        }
        (Ty::F16x2, "rn", true) => binary(move |a: f32, b: f32| join(to_f16(rectify(a)), to_f16(rectify(b)))),
        (Ty::Bf16x2, "rz", false) => {
            binary(move |a: f32, b: f32| join(float::to_bf16_toward_zero(a), float::to_bf16_toward_zero(b)))
        }
        (Ty::F16x2, "rz", false) => {
            binary(move |a: f32, b: f32| join(float::to_f16_toward_zero(a), float::to_f16_toward_zero(b)))
        }
        _ => return None,
    })
}

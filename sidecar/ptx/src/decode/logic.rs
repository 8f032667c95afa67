//! Comparisons, selections and logic of predicates.
#![allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    reason = "NaN makes `!(a < b)` another comparison than `a >= b`, and `a < b || a > b` another than `a != b`"
)]

use super::integer::for_integers;
use super::{Decoded, Decoder};
use crate::float::{flush, from_bf16, from_f16};
use crate::instruction::Instruction;
use crate::lanes::NONE;
use crate::operation::Operation;
use crate::operation::{Combine, compare, ternary};
use crate::ops::moves;
use crate::statement::{Operand, Statement};
use crate::types::{Ty, Width};

impl Decoder<'_> {
    pub(super) fn logic(&mut self, s: &mut Statement) -> Decoded {
        let name = s.name;
        match name {
            "setp" => self.setp(s),
            "selp" => self.selp(s),
            "slct" => self.slct(s),
            "and" | "or" | "xor" | "not" if s.take("pred") => {
                let (detail, operands) = match name {
                    "and" => (moves::AND, 3),
                    "or" => (moves::OR, 3),
                    "xor" => (moves::XOR, 3),
                    _ => (moves::NOT, 2),
                };
                s.finish(operands)?;
                let d = self.destination(s, 0, Ty::Pred)?;
                let a = self.predicate(s.operand(1)?)?;
                let b = if operands == 3 { self.predicate(s.operand(2)?)? } else { NONE };
                Ok(Some(Instruction { d, a, b, detail, ..self.plain(moves::predicates()) }))
            }
            _ => Ok(None),
        }
    }

    fn setp(&mut self, s: &mut Statement) -> Decoded {
        let ty = s.take_type()?;
        let names = [
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
            "geu", "num", "nan",
        ];
        let name = s.take_one(&names).ok_or("which comparison?")?;
        let combined = s.take_one(&["and", "or", "xor"]);
        let flushes = s.take("ftz");
        let operation = comparison(name, ty, flushes).ok_or("a comparison of this type")?;
        s.finish(if combined.is_some() { 4 } else { 3 })?;
        let (p, q) = self.predicates(s.operand(0)?)?;
        let mut detail = match combined {
            Some("and") => Combine::AND,
            Some("or") => Combine::OR,
            Some(_) => Combine::XOR,
            None if q == NONE => Combine::NOTHING,
            None => Combine::NONE,
        };
        let mut e = NONE;
        if combined.is_some() {
            e = match s.operand(3)? {
                Operand::Not(name) => {
                    detail |= Combine::NEGATED;
                    self.predicate(&Operand::Name(name))?
                }
                other => self.predicate(other)?,
            };
        }
        let (a, b) = (self.source(s, 1, ty)?, self.source(s, 2, ty)?);
        Ok(Some(Instruction { d: p, c: q, a, b, e, detail, ..self.plain(operation) }))
    }

    fn selp(&mut self, s: &mut Statement) -> Decoded {
        let ty = s.take_type()?;
        s.finish(4)?;
        let d = self.destination(s, 0, ty)?;
        let (a, b) = (self.source(s, 1, ty)?, self.source(s, 2, ty)?);
        let c = self.predicate(s.operand(3)?)?;
        Ok(Some(Instruction { d, a, b, c, ..self.plain(moves::select(ty.width() == Width::W64)) }))
    }

    /// `slct.T.s32 d, a, b, c`: a where c is not negative, else b.
    fn slct(&mut self, s: &mut Statement) -> Decoded {
        let (by, ty) = (s.take_type()?, s.take_type()?);
        let flushes = s.take("ftz");
        let wide = ty.width() == Width::W64;
        let operation = match (by, wide) {
            (Ty::S32, false) => ternary(|a: u32, b: u32, c: i32| if c >= 0 { a } else { b }),
            (Ty::S32, true) => ternary(|a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
            // A subnormal below zero counts as zero with `.ftz`.
            (Ty::F32, false) if flushes => {
                ternary(|a: u32, b: u32, c: f32| if flush(c) >= 0.0 { a } else { b })
            }
            (Ty::F32, false) => ternary(|a: u32, b: u32, c: f32| if c >= 0.0 { a } else { b }),
            (Ty::F32, true) => ternary(|a: u64, b: u64, c: f32| if c >= 0.0 { a } else { b }),
            _ => return Err("slct of this type".into()),
        };
        self.arithmetic(s, operation, &[ty, ty, ty, by])
    }
}

fn comparison(name: &str, ty: Ty, flushes: bool) -> Option<Operation> {
    match ty {
        Ty::F32 if flushes => float(name, |a: f32| f64::from(flush(a))),
        _ if flushes => None,
        Ty::F32 => single(name),
        Ty::F64 => float(name, |a: f64| a),
        Ty::F16 => float(name, |a: u16| f64::from(from_f16(a))),
        Ty::Bf16 => float(name, |a: u16| f64::from(from_bf16(a))),
        _ => integer(name, ty),
    }
}

fn integer(name: &str, ty: Ty) -> Option<Operation> {
    // Bits have no order, and the other names of orders are for unsigned numbers.
    let bits = matches!(ty, Ty::B16 | Ty::B32 | Ty::B64);
    match name {
        "eq" => for_integers!(ty.bits(), T => compare(|a: T, b: T| a == b)),
        "ne" => for_integers!(ty.bits(), T => compare(|a: T, b: T| a != b)),
        _ if bits || matches!(name, "lo" | "ls" | "hi" | "hs") && ty.is_signed() => None,
        "lt" | "lo" => for_integers!(ty, T => compare(|a: T, b: T| a < b)),
        "le" | "ls" => for_integers!(ty, T => compare(|a: T, b: T| a <= b)),
        "gt" | "hi" => for_integers!(ty, T => compare(|a: T, b: T| a > b)),
        "ge" | "hs" => for_integers!(ty, T => compare(|a: T, b: T| a >= b)),
        _ => None,
    }
}

/// Comparisons of floats; those that end with `u` are true if one is NaN, the others false.
macro_rules! comparisons {
    ($name:expr, $make:ident) => {
        Some(match $name {
            "eq" => $make!(|a, b| a == b),
            "ne" => $make!(|a, b| a < b || a > b),
            "lt" => $make!(|a, b| a < b),
            "le" => $make!(|a, b| a <= b),
            "gt" => $make!(|a, b| a > b),
            "ge" => $make!(|a, b| a >= b),
            "equ" => $make!(|a, b| !(a < b || a > b)),
            "neu" => $make!(|a, b| a != b),
            "ltu" => $make!(|a, b| !(a >= b)),
            "leu" => $make!(|a, b| !(a > b)),
            "gtu" => $make!(|a, b| !(a <= b)),
            "geu" => $make!(|a, b| !(a < b)),
            "num" => $make!(|a, b| !a.is_nan() && !b.is_nan()),
            "nan" => $make!(|a, b| a.is_nan() || b.is_nan()),
            _ => return None,
        })
    };
}

fn single(name: &str) -> Option<Operation> {
    macro_rules! make {
        (|$a:ident, $b:ident| $f:expr) => {
            compare(|$a: f32, $b: f32| $f)
        };
    }
    comparisons!(name, make)
}

fn float<A: crate::lanes::Lane>(name: &str, widen: impl Fn(A) -> f64 + Copy) -> Option<Operation> {
    macro_rules! make {
        (|$a:ident, $b:ident| $f:expr) => {
            compare(move |x: A, y: A| {
                let ($a, $b) = (widen(x), widen(y));
                $f
            })
        };
    }
    comparisons!(name, make)
}

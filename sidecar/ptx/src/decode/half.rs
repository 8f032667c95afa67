//! Arithmetic of f16 and bf16, alone and in pairs. A result is rounded once: sums and products of two halves are exact
//! enough in f32, and `fma` goes through f64 rounded to odd.

use super::{Decoded, Decoder};
use crate::float::{self, from_bf16, from_f16, to_bf16, to_f16};
use crate::operation::Operation;
use crate::operation::{binary, ternary, unary};
use crate::statement::Statement;
use crate::types::Ty;

impl Decoder<'_> {
    pub(super) fn half(&mut self, s: &mut Statement) -> Decoded {
        let kinds = [("f16", Ty::F16), ("f16x2", Ty::F16x2), ("bf16", Ty::Bf16), ("bf16x2", Ty::Bf16x2)];
        let arithmetic =
            matches!(s.name, "add" | "sub" | "mul" | "fma" | "min" | "max" | "neg" | "abs" | "ex2" | "tanh");
        let found = kinds.into_iter().find(|(word, _)| arithmetic && s.take(word));
        let Some((_, ty)) = found else { return Ok(None) };
        s.take("rn");
        let approximate = s.take("approx");
        if matches!(s.name, "ex2" | "tanh") != approximate {
            return Err(format!("{} of this type and rounding", s.name));
        }
        let operation = match ty {
            Ty::F16 => f16(s.name),
            Ty::F16x2 => f16x2(s.name),
            Ty::Bf16 => bf16(s.name),
            _ => bf16x2(s.name),
        };
        let operands = match s.name {
            "fma" => 4,
            "neg" | "abs" | "ex2" | "tanh" => 2,
            _ => 3,
        };
        self.arithmetic(s, operation, &[ty; 4][..operands])
    }
}

/// Makes the table of one type: `$from` and `$to` convert to f32 and back, and `$one`, `$two`, `$three` make an operation
/// out of a function of one half.
macro_rules! table {
    ($Name:ident, $from:ident, $to:ident, $one:ident, $two:ident, $three:ident) => {
        fn $Name(name: &str) -> Operation {
            match name {
                "add" => $two(|a, b| $to($from(a) + $from(b))),
                "sub" => $two(|a, b| $to($from(a) - $from(b))),
                "mul" => $two(|a, b| $to($from(a) * $from(b))),
                "min" => $two(|a, b| $to(float::min($from(a), $from(b)))),
                "max" => $two(|a, b| $to(float::max($from(a), $from(b)))),
                "fma" => $three(|a, b, c| {
                    $to(float::f64_to_odd_f32(float::fma_to_odd($from(a), $from(b), $from(c))))
                }),
                "neg" => $one(|a| a ^ 0x8000),
                "abs" => $one(|a| a & 0x7fff),
                "ex2" => $one(|a| $to(float::ex2($from(a)))),
                _ => $one(|a| $to(float::tanh($from(a)))),
            }
        }
    };
}
table!(f16, from_f16, to_f16, one, two, three);
table!(bf16, from_bf16, to_bf16, one, two, three);
table!(f16x2, from_f16, to_f16, one_x2, two_x2, three_x2);
table!(bf16x2, from_bf16, to_bf16, one_x2, two_x2, three_x2);

fn one(f: impl Fn(u16) -> u16 + Copy) -> Operation {
    unary(f)
}

fn two(f: impl Fn(u16, u16) -> u16 + Copy) -> Operation {
    binary(f)
}

fn three(f: impl Fn(u16, u16, u16) -> u16 + Copy) -> Operation {
    ternary(f)
}

/// Two halves of 16 bits as a word.
#[inline(always)]
fn join(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

fn one_x2(f: impl Fn(u16) -> u16 + Copy) -> Operation {
    unary(move |a: u32| join(f(a as u16), f((a >> 16) as u16)))
}

fn two_x2(f: impl Fn(u16, u16) -> u16 + Copy) -> Operation {
    binary(move |a: u32, b: u32| join(f(a as u16, b as u16), f((a >> 16) as u16, (b >> 16) as u16)))
}

fn three_x2(f: impl Fn(u16, u16, u16) -> u16 + Copy) -> Operation {
    ternary(move |a: u32, b: u32, c: u32| {
        join(f(a as u16, b as u16, c as u16), f((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16))
    })
}

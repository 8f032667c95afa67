//! Integer arithmetic, shifts and bits.

use super::{Decoded, Decoder};
use crate::operation::{binary, quaternary, ternary, unary};
use crate::statement::Statement;
use crate::types::Ty;

/// Evaluates `$make` with `$T` as the type of a register of type `$ty`, if it is one of 16, 32 or 64 bits.
macro_rules! for_integers {
    ($ty:expr, $T:ident => $make:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => {
                type $T = u16;
                Some($make)
            }
            Ty::S16 => {
                type $T = i16;
                Some($make)
            }
            Ty::U32 | Ty::B32 => {
                type $T = u32;
                Some($make)
            }
            Ty::S32 => {
                type $T = i32;
                Some($make)
            }
            Ty::U64 | Ty::B64 => {
                type $T = u64;
                Some($make)
            }
            Ty::S64 => {
                type $T = i64;
                Some($make)
            }
            _ => None,
        }
    };
}
pub(super) use for_integers;

impl Decoder<'_> {
    pub(super) fn integer(&mut self, s: &mut Statement) -> Decoded {
        let products = self.products(s)?;
        if products.is_some() {
            return Ok(products);
        }
        let name = s.name;
        let known = matches!(
            name,
            "add"
                | "sub"
                | "div"
                | "rem"
                | "min"
                | "max"
                | "abs"
                | "neg"
                | "sad"
                | "and"
                | "or"
                | "xor"
                | "not"
                | "cnot"
                | "shl"
                | "shr"
        );
        if !known {
            return self.bits(s);
        }
        let ty = s.take_type()?;
        // Signs matter for few operations; the others share one form.
        let signed = matches!(name, "div" | "rem" | "min" | "max" | "abs" | "sad" | "shr");
        let form = if signed { ty } else { ty.bits() };
        let saturates = name != "abs" && ty == Ty::S32 && s.take("sat");
        let operation = match name {
            "add" if saturates => Some(binary(i32::saturating_add)),
            "sub" if saturates => Some(binary(i32::saturating_sub)),
            _ if saturates => return Err(format!("{name}.sat")),
            "add" => for_integers!(form, T => binary(|a: T, b: T| a.wrapping_add(b))),
            "sub" => for_integers!(form, T => binary(|a: T, b: T| a.wrapping_sub(b))),
            // What a division by zero gives is not defined; a GPU gives all ones, and the dividend as the remainder.
            "div" => {
                for_integers!(form, T => binary(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) }))
            }
            "rem" => {
                for_integers!(form, T => binary(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }))
            }
            "min" => for_integers!(form, T => binary(|a: T, b: T| a.min(b))),
            "max" => for_integers!(form, T => binary(|a: T, b: T| a.max(b))),
            "sad" => for_integers!(form, T => ternary(|a: T, b: T, c: T| {
                c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) })
            })),
            "abs" => match ty {
                Ty::S16 => Some(unary(i16::wrapping_abs)),
                Ty::S32 => Some(unary(i32::wrapping_abs)),
                Ty::S64 => Some(unary(i64::wrapping_abs)),
                _ => None,
            },
            "neg" => for_integers!(form, T => unary(|a: T| a.wrapping_neg())),
            "and" => for_integers!(form, T => binary(|a: T, b: T| a & b)),
            "or" => for_integers!(form, T => binary(|a: T, b: T| a | b)),
            "xor" => for_integers!(form, T => binary(|a: T, b: T| a ^ b)),
            "not" => for_integers!(form, T => unary(|a: T| !a)),
            "cnot" => for_integers!(form, T => unary(|a: T| T::from(a == 0))),
            "shl" => for_integers!(form, T => binary(|a: T, n: u32| if n < T::BITS { a << n } else { 0 })),
            _ => for_integers!(form, T => binary(|a: T, n: u32| {
                if n < T::BITS { a >> n } else { a >> (T::BITS - 1) >> 1 }
            })),
        };
        let Some(operation) = operation else { return Err(format!("{name} of this type")) };
        self.arithmetic(s, operation, integer_operands(name, &[ty, ty, ty, ty], &[ty, ty, Ty::U32]))
    }

    fn products(&mut self, s: &mut Statement) -> Decoded {
        let add = matches!(s.name, "mad" | "mad24");
        if !add && !matches!(s.name, "mul" | "mul24") {
            return Ok(None);
        }
        let ty = s.take_type()?;
        let small = s.name.ends_with("24");
        let part = s.take_one(&["lo", "hi", "wide"]).ok_or("which half of the product?")?;
        let wide_ty = match ty {
            Ty::U16 => Ty::U32,
            Ty::S16 => Ty::S32,
            Ty::U32 => Ty::U64,
            _ => Ty::S64,
        };
        let operation = match (part, ty, add) {
            _ if small && part != "lo" => None,
            (_, Ty::U32, false) if small => {
                Some(binary(|a: u32, b: u32| (a << 8 >> 8).wrapping_mul(b << 8 >> 8)))
            }
            (_, Ty::S32, false) if small => {
                Some(binary(|a: i32, b: i32| (a << 8 >> 8).wrapping_mul(b << 8 >> 8)))
            }
            _ if small => None,
            ("lo", _, false) => for_integers!(ty.bits(), T => binary(|a: T, b: T| a.wrapping_mul(b))),
            ("lo", _, true) => {
                for_integers!(ty.bits(), T => ternary(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c)))
            }
            ("wide", Ty::U16, false) => Some(binary(|a: u16, b: u16| u32::from(a) * u32::from(b))),
            ("wide", Ty::S16, false) => Some(binary(|a: i16, b: i16| i32::from(a) * i32::from(b))),
            ("wide", Ty::U32, false) => Some(binary(|a: u32, b: u32| u64::from(a) * u64::from(b))),
            ("wide", Ty::S32, false) => Some(binary(|a: i32, b: i32| i64::from(a) * i64::from(b))),
            ("wide", Ty::U16, true) => {
                Some(ternary(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)))
            }
            ("wide", Ty::S16, true) => {
                Some(ternary(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)))
            }
            ("wide", Ty::U32, true) => {
                Some(ternary(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)))
            }
            ("wide", Ty::S32, true) => {
                Some(ternary(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)))
            }
            ("hi", Ty::U32, _) => Some(binary(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32)),
            ("hi", Ty::S32, _) => Some(binary(|a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32)),
            ("hi", Ty::U64, _) => {
                Some(binary(|a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64))
            }
            ("hi", Ty::S64, _) => {
                Some(binary(|a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64))
            }
            _ => None,
        };
        let operation = match (part, ty, add) {
            ("hi", Ty::U32, true) => Some(ternary(|a: u32, b: u32, c: u32| {
                (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
            })),
            ("hi", Ty::S32, true) => Some(ternary(|a: i32, b: i32, c: i32| {
                (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)
            })),
            ("hi", _, true) => None,
            _ => operation,
        };
        let Some(operation) = operation else { return Err("a product of this type".into()) };
        let result = if part == "wide" { wide_ty } else { ty };
        let types = [result, ty, ty, result];
        self.arithmetic(s, operation, if add { &types } else { &types[..3] })
    }

    fn bits(&mut self, s: &mut Statement) -> Decoded {
        let name = s.name;
        if !matches!(
            name,
            "popc" | "clz" | "bfind" | "brev" | "bfe" | "bfi" | "prmt" | "lop3" | "shf" | "dp4a"
        ) {
            return Ok(None);
        }
        match name {
            "dp4a" => return self.dot_product(s),
            "shf" => return self.funnel_shift(s),
            _ => {}
        }
        let ty = s.take_type()?;
        let from_top = name == "bfind" && s.take("shiftamt");
        let wide = ty.bytes() == 8;
        let operation = match (name, ty) {
            ("popc", _) if wide => unary(|a: u64| a.count_ones()),
            ("popc", _) => unary(|a: u32| a.count_ones()),
            ("clz", _) if wide => unary(|a: u64| a.leading_zeros()),
            ("clz", _) => unary(|a: u32| a.leading_zeros()),
            ("brev", _) if wide => unary(u64::reverse_bits),
            ("brev", _) => unary(u32::reverse_bits),
            ("bfind", Ty::U32) if from_top => unary(|a: u32| if a == 0 { !0 } else { a.leading_zeros() }),
            ("bfind", Ty::U32) => unary(|a: u32| if a == 0 { !0 } else { 31 - a.leading_zeros() }),
            ("bfind", Ty::U64) if from_top => unary(|a: u64| if a == 0 { !0 } else { a.leading_zeros() }),
            ("bfind", Ty::U64) => unary(|a: u64| if a == 0 { !0 } else { 63 - a.leading_zeros() }),
            ("bfind", Ty::S32) if !from_top => unary(|a: i32| {
                let a = if a < 0 { !a } else { a };
                if a == 0 { !0 } else { 31 - a.leading_zeros() }
            }),
            ("bfe", Ty::U32) => ternary(|a: u32, p: u32, n: u32| extract(u64::from(a), p, n) as u32),
            ("bfe", Ty::U64) => ternary(extract),
            ("bfe", Ty::S32) => {
                ternary(|a: i32, p: u32, n: u32| extract_signed(i64::from(a), 31, p, n) as i32)
            }
            ("bfe", Ty::S64) => ternary(|a: i64, p: u32, n: u32| extract_signed(a, 63, p, n)),
            ("bfi", Ty::B32) => {
                quaternary(|a: u32, b: u32, p: u32, n: u32| insert(u64::from(a), u64::from(b), p, n) as u32)
            }
            ("bfi", Ty::B64) => quaternary(insert),
            ("prmt", Ty::B32) => ternary(permute),
            ("lop3", Ty::B32) => quaternary(|a: u32, b: u32, c: u32, table: u32| {
                let mut result = 0;
                for row in 0..8 {
                    let [x, y, z] =
                        [(4, a), (2, b), (1, c)].map(|(bit, v)| if row & bit != 0 { v } else { !v });
                    result |= if table >> row & 1 != 0 { x & y & z } else { 0 };
                }
                result
            }),
            _ => return Err(format!("{name} of this type")),
        };
        match name {
            "popc" | "clz" | "bfind" => self.arithmetic(s, operation, &[Ty::U32, ty]),
            "brev" => self.arithmetic(s, operation, &[ty, ty]),
            "bfi" => self.arithmetic(s, operation, &[ty, ty, ty, Ty::U32, Ty::U32]),
            "lop3" => self.arithmetic(s, operation, &[ty, ty, ty, ty, Ty::U32]),
            "prmt" => self.arithmetic(s, operation, &[ty, ty, ty, ty]),
            _ => self.arithmetic(s, operation, &[ty, ty, Ty::U32, Ty::U32]),
        }
    }

    fn funnel_shift(&mut self, s: &mut Statement) -> Decoded {
        let left = s.take_one(&["l", "r"]).ok_or("shf.l or shf.r")? == "l";
        let wraps = s.take_one(&["wrap", "clamp"]).ok_or("shf.wrap or shf.clamp")? == "wrap";
        if !s.take("b32") {
            return Err("shf of this type".into());
        }
        let join = |a: u32, b: u32| u64::from(b) << 32 | u64::from(a);
        let operation = match (left, wraps) {
            (true, true) => ternary(move |a: u32, b: u32, n: u32| (join(a, b) << (n & 31) >> 32) as u32),
            (true, false) => ternary(move |a: u32, b: u32, n: u32| (join(a, b) << n.min(32) >> 32) as u32),
            (false, true) => ternary(move |a: u32, b: u32, n: u32| (join(a, b) >> (n & 31)) as u32),
            (false, false) => ternary(move |a: u32, b: u32, n: u32| (join(a, b) >> n.min(32)) as u32),
        };
        self.arithmetic(s, operation, &[Ty::B32, Ty::B32, Ty::B32, Ty::U32])
    }

    fn dot_product(&mut self, s: &mut Statement) -> Decoded {
        let (b, a) = (s.take_type()?, s.take_type()?);
        let signed = |x: u32, k: usize| i32::from(x.to_le_bytes()[k] as i8);
        let unsigned = |x: u32, k: usize| i32::from(x.to_le_bytes()[k]);
        macro_rules! dot {
            ($a:expr, $b:expr) => {
                ternary(move |x: u32, y: u32, c: i32| {
                    (0..4).fold(c, |sum, k| sum.wrapping_add($a(x, k) * $b(y, k)))
                })
            };
        }
        let operation = match (a, b) {
            (Ty::S32, Ty::S32) => dot!(signed, signed),
            (Ty::S32, Ty::U32) => dot!(signed, unsigned),
            (Ty::U32, Ty::S32) => dot!(unsigned, signed),
            (Ty::U32, Ty::U32) => dot!(unsigned, unsigned),
            _ => return Err("dp4a of this type".into()),
        };
        self.arithmetic(s, operation, &[Ty::S32, Ty::U32, Ty::U32, Ty::S32])
    }
}

/// The types of the operands: how many of `same`, or those of a shift.
fn integer_operands<'t>(name: &str, same: &'t [Ty], shift: &'t [Ty]) -> &'t [Ty] {
    match name {
        "abs" | "neg" | "not" | "cnot" => &same[..2],
        "sad" => same,
        "shl" | "shr" => shift,
        _ => &same[..3],
    }
}

/// `bfe`: `n` bits from bit `p` on.
#[inline(always)]
fn extract(a: u64, p: u32, n: u32) -> u64 {
    let (p, n) = (p & 255, n & 255);
    let shifted = if p > 63 { 0 } else { a >> p };
    if n > 63 { shifted } else { shifted & ((1 << n) - 1) }
}

/// `bfe` with the sign bit of what is extracted; `top` is the number of the highest bit of `a`.
#[inline(always)]
fn extract_signed(a: i64, top: u32, p: u32, n: u32) -> i64 {
    let (p, n) = (p & 255, n & 255);
    if n == 0 {
        return 0;
    }
    let last = (p + n - 1).min(top);
    let p = p.min(last);
    a << (63 - last) >> (63 - last + p)
}

/// `bfi`: the lowest `n` bits of `a` in place of those of `b` from bit `p` on.
#[inline(always)]
fn insert(a: u64, b: u64, p: u32, n: u32) -> u64 {
    let (p, n) = (p & 255, n & 255);
    if p > 63 || n == 0 {
        return b;
    }
    let mask = (u64::MAX >> (64 - n.min(64))) << p;
    (b & !mask) | (a << p & mask)
}

/// `prmt`: four bytes of `a` and `b`, each chosen by four bits of `selector`.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let all = u64::from(b) << 32 | u64::from(a);
    let mut result = 0;
    for k in 0..4 {
        let choice = selector >> (4 * k) & 15;
        let byte = (all >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        result |= u32::from(byte) << (8 * k);
    }
    result
}

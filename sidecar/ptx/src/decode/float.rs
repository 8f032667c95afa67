//! Arithmetic of f32 and f64.

use super::{Decoded, Decoder};
use crate::float::{self, Toward, canonical, flush, saturate};
use crate::operation::Operation;
use crate::operation::{binary, ternary, unary};
use crate::statement::Statement;
use crate::types::Ty;

/// `.ftz` and `.sat` of an instruction.
#[derive(Clone, Copy)]
struct Finish {
    flush: bool,
    saturate: bool,
}

impl Finish {
    fn unary(self, f: impl Fn(f32) -> f32 + Copy) -> Operation {
        match (self.flush, self.saturate) {
            (false, false) => unary(move |a: f32| canonical(f(a))),
            (true, false) => unary(move |a: f32| flush(canonical(f(flush(a))))),
            (false, true) => unary(move |a: f32| saturate(f(a))),
            (true, true) => unary(move |a: f32| saturate(flush(f(flush(a))))),
        }
    }

    fn binary(self, f: impl Fn(f32, f32) -> f32 + Copy) -> Operation {
        match (self.flush, self.saturate) {
            (false, false) => binary(move |a: f32, b: f32| canonical(f(a, b))),
            (true, false) => binary(move |a: f32, b: f32| flush(canonical(f(flush(a), flush(b))))),
            (false, true) => binary(move |a: f32, b: f32| saturate(f(a, b))),
            (true, true) => binary(move |a: f32, b: f32| saturate(flush(f(flush(a), flush(b))))),
        }
    }

    fn ternary(self, f: impl Fn(f32, f32, f32) -> f32 + Copy) -> Operation {
        match (self.flush, self.saturate) {
            (false, false) => ternary(move |a: f32, b: f32, c: f32| canonical(f(a, b, c))),
            (true, false) => {
                ternary(move |a: f32, b: f32, c: f32| flush(canonical(f(flush(a), flush(b), flush(c)))))
            }
            (false, true) => ternary(move |a: f32, b: f32, c: f32| saturate(f(a, b, c))),
            (true, true) => {
                ternary(move |a: f32, b: f32, c: f32| saturate(flush(f(flush(a), flush(b), flush(c)))))
            }
        }
    }
}

impl Decoder<'_> {
    pub(super) fn float(&mut self, s: &mut Statement) -> Decoded {
        let ty = if s.take("f32") {
            Ty::F32
        } else if s.take("f64") {
            Ty::F64
        } else {
            return Ok(None);
        };
        let directed = match s.take_one(&["rn", "rz", "rm", "rp"]) {
            None | Some("rn") => None,
            Some("rz") => Some(Toward::Zero),
            Some("rm") => Some(Toward::Down),
            Some(_) => Some(Toward::Up),
        };
        let finish = Finish { flush: s.take("ftz"), saturate: s.take("sat") };
        let operands = match s.name {
            "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => 3,
            "fma" | "mad" => 4,
            _ => 2,
        };
        let operation = match (ty, directed) {
            (Ty::F32, None) => single(s, finish),
            (Ty::F32, Some(toward)) if !finish.flush && !finish.saturate => single_toward(s.name, toward),
            (Ty::F64, None) if !finish.flush && !finish.saturate => double(s.name),
            _ => None,
        };
        let Some(operation) = operation else { return Err(format!("{} of this type and rounding", s.name)) };
        self.arithmetic(s, operation, &[ty; 4][..operands])
    }
}

/// Operations of f32 rounded to nearest. Approximations are exact or nearly so here.
fn single(s: &mut Statement, finish: Finish) -> Option<Operation> {
    let approximate = s.take("approx");
    let keeps_nan = matches!(s.name, "min" | "max") && s.take("NaN");
    Some(match s.name {
        "add" => finish.binary(|a, b| a + b),
        "sub" => finish.binary(|a, b| a - b),
        "mul" => finish.binary(|a, b| a * b),
        "fma" | "mad" => finish.ternary(f32::mul_add),
        "div" => {
            s.take("full");
            finish.binary(|a, b| a / b)
        }
        "min" if keeps_nan => {
            finish.binary(|a, b| if a.is_nan() || b.is_nan() { float::NAN } else { float::min(a, b) })
        }
        "max" if keeps_nan => {
            finish.binary(|a, b| if a.is_nan() || b.is_nan() { float::NAN } else { float::max(a, b) })
        }
        "min" => finish.binary(float::min),
        "max" => finish.binary(float::max),
        "abs" if finish.flush => unary(|a: f32| flush(a).abs()),
        "abs" => unary(f32::abs),
        "neg" if finish.flush => unary(|a: f32| -flush(a)),
        "neg" => unary(|a: f32| -a),
        // The sign of the first operand, the value of the second.
        "copysign" => binary(|a: f32, b: f32| b.copysign(a)),
        "rcp" => finish.unary(|a| 1.0 / a),
        "sqrt" => finish.unary(f32::sqrt),
        "rsqrt" if approximate => finish.unary(|a| 1.0 / a.sqrt()),
        "ex2" if approximate => finish.unary(float::ex2),
        "lg2" if approximate => finish.unary(float::lg2),
        "sin" if approximate => finish.unary(float::sin),
        "cos" if approximate => finish.unary(float::cos),
        "tanh" if approximate => finish.unary(float::tanh),
        _ => return None,
    })
}

/// Operations of f32 with directed rounding.
fn single_toward(name: &str, toward: Toward) -> Option<Operation> {
    macro_rules! toward {
        ($make:ident, $t:ident, $f:expr) => {
            match toward {
                Toward::Zero => $make({
                    const $t: Toward = Toward::Zero;
                    $f
                }),
                Toward::Down => $make({
                    const $t: Toward = Toward::Down;
                    $f
                }),
                Toward::Up => $make({
                    const $t: Toward = Toward::Up;
                    $f
                }),
            }
        };
    }
    Some(match name {
        "add" => toward!(binary, T, |a: f32, b: f32| float::fma_toward(a, 1.0, b, T)),
        "sub" => toward!(binary, T, |a: f32, b: f32| float::fma_toward(a, 1.0, -b, T)),
        "mul" => toward!(binary, T, |a: f32, b: f32| float::fma_toward(a, b, 0.0, T)),
        "fma" | "mad" => toward!(ternary, T, |a: f32, b: f32, c: f32| float::fma_toward(a, b, c, T)),
        _ => return None,
    })
}

/// Operations of f64 rounded to nearest.
fn double(name: &str) -> Option<Operation> {
    Some(match name {
        "add" => binary(|a: f64, b: f64| a + b),
        "sub" => binary(|a: f64, b: f64| a - b),
        "mul" => binary(|a: f64, b: f64| a * b),
        "fma" | "mad" => ternary(f64::mul_add),
        "div" => binary(|a: f64, b: f64| a / b),
        "min" => binary(float::min_f64),
        "max" => binary(float::max_f64),
        "abs" => unary(f64::abs),
        "neg" => unary(|a: f64| -a),
        "copysign" => binary(|a: f64, b: f64| b.copysign(a)),
        "rcp" => unary(|a: f64| 1.0 / a),
        "sqrt" => unary(f64::sqrt),
        _ => return None,
    })
}

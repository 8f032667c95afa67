//! Every operation of one lane, against the arithmetic of Rust on random values and on those at the edges, for all 32
//! lanes and with lanes switched off. The portable form and the vector form give the same bits.

use sluice_ptx::{Mode, Module};

use crate::support::{Random, run_module, text};

/// Threads of a test: two warps.
const THREADS: usize = 64;
/// What a destination holds before; lanes that are switched off keep it.
const BEFORE: u64 = 0x0123_4567_89ab_cdef;

type Expected = fn(u64, u64, u64) -> u64;

/// An instruction and what it computes. Sources are `%rd2`, `%rd3` and `%rd4`, or their lower halves `%r1` to `%r3` and
/// `%f1` to `%f3`, or lower quarters `%rs1` to `%rs3`, or `%fd1` to `%fd3`. The destination is register 5 of a kind.
struct Case(&'static str, Expected);

fn around(instruction: &str) -> String {
    let kind = |name: &str| instruction.split_whitespace().nth(1).is_some_and(|word| word.starts_with(name));
    let store = if kind("%rs") {
        "cvt.u64.u16 %rd9, %rs5;"
    } else if kind("%rd") {
        "mov.u64 %rd9, %rd5;"
    } else if kind("%r") {
        "cvt.u64.u32 %rd9, %r5;"
    } else if kind("%fd") {
        "mov.b64 %rd9, %fd5;"
    } else if kind("%f") {
        "mov.b32 %r9, %f5; cvt.u64.u32 %rd9, %r9;"
    } else {
        "selp.u64 %rd9, 1, 0, %p5;"
    };
    format!(
        "mad.wide.u32 %rd1, %r0, 32, %rd0;
        ld.global.u64 %rd2, [%rd1]; ld.global.u64 %rd3, [%rd1+8]; ld.global.u64 %rd4, [%rd1+16];
        cvt.u32.u64 %r1, %rd2; cvt.u32.u64 %r2, %rd3; cvt.u32.u64 %r3, %rd4;
        cvt.u16.u64 %rs1, %rd2; cvt.u16.u64 %rs2, %rd3; cvt.u16.u64 %rs3, %rd4;
        mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;
        mov.b64 %fd1, %rd2; mov.b64 %fd2, %rd3; mov.b64 %fd3, %rd4;
        mov.u64 %rd5, 0x0123456789abcdef; cvt.u32.u64 %r5, %rd5; cvt.u16.u64 %rs5, %rd5; mov.b32 %f5, %r5;
        mov.b64 %fd5, %rd5; setp.eq.u32 %p5, 0, 1;
        and.b32 %r8, %r0, 3; setp.ne.u32 %p1, %r8, 1; setp.gt.s32 %p2, %r3, 0;
        @%p1 {instruction}
        {store}
        st.global.u64 [%rd1+24], %rd9;"
    )
}

/// Values of one thread: random bits, numbers near zero, or floats at the edges.
fn value(random: &mut Random, choice: u64) -> u64 {
    let floats = [
        0x0000_0000u32,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0001,
        0x0000_0001,
        0x807f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x7f7f_ffff,
        0x4f00_0000,
        0xcf00_0000,
        0x5f00_0000,
        0x3f00_0000,
        0x4020_0000,
    ];
    let bits = random.next();
    match choice % 4 {
        0 => bits,
        1 => (bits % 41).wrapping_sub(20),
        2 => bits << 32 | u64::from(floats[(bits >> 33) as usize % floats.len()]),
        // A float and a double of moderate size, and lower bits that make a small shift or a moderate half.
        _ => {
            (0x3ff0_0000_0000_0000 | bits >> 14) & !0xffff_ffff | u64::from((bits as u32 >> 9) | 0x4000_0000)
        }
    }
}

fn data() -> Vec<[u64; 4]> {
    let mut random = Random::new(11);
    (0..THREADS as u64)
        .map(|n| [n, n / 4, n / 16].map(|n| value(&mut random, n)))
        .map(|[a, b, c]| [a, b, c, 0])
        .collect()
}

fn check(cases: &[Case]) {
    let data = data();
    for Case(instruction, expected) in cases {
        let body = text(&around(instruction));
        for module in [Module::parse(&body), Module::parse_portable(&body)] {
            let module = module.unwrap();
            let result = run_module(&module, &data, 1, THREADS as u32, Mode::Fast).unwrap();
            for (thread, [a, b, c, found]) in result.into_iter().enumerate() {
                let bits = match instruction.split_whitespace().nth(1).unwrap() {
                    word if word.starts_with("%rs") => 16,
                    word if word.starts_with("%rd") || word.starts_with("%fd") => 64,
                    word if word.starts_with("%p") => 1,
                    _ => 32,
                };
                let before = if bits == 1 { 0 } else { BEFORE };
                let wanted =
                    if thread % 4 == 1 { before } else { expected(a, b, c) } & (u64::MAX >> (64 - bits));
                assert_eq!(
                    found, wanted,
                    "{instruction} of {a:#x}, {b:#x}, {c:#x}: {found:#x}, not {wanted:#x}"
                );
            }
        }
    }
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The bits of a result of f32 arithmetic.
fn r(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}

#[test]
fn integers_of_32_bits() {
    check(&[
        Case("add.s32 %r5, %r1, %r2;", |a, b, _| a.wrapping_add(b)),
        Case("sub.u32 %r5, %r1, %r2;", |a, b, _| a.wrapping_sub(b)),
        Case("add.sat.s32 %r5, %r1, %r2;", |a, b, _| (a as i32).saturating_add(b as i32) as u64),
        Case("sub.sat.s32 %r5, %r1, %r2;", |a, b, _| (a as i32).saturating_sub(b as i32) as u64),
        Case("mul.lo.s32 %r5, %r1, %r2;", |a, b, _| a.wrapping_mul(b)),
        Case("mul.hi.u32 %r5, %r1, %r2;", |a, b, _| (a as u32 as u64 * (b as u32 as u64)) >> 32),
        Case("mul.hi.s32 %r5, %r1, %r2;", |a, b, _| ((a as i32 as i64 * (b as i32 as i64)) >> 32) as u64),
        Case("mul.wide.u32 %rd5, %r1, %r2;", |a, b, _| a as u32 as u64 * (b as u32 as u64)),
        Case("mul.wide.s32 %rd5, %r1, -7;", |a, _, _| (a as i32 as i64 * -7) as u64),
        Case("mul24.lo.u32 %r5, %r1, %r2;", |a, b, _| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)),
        Case("mad.lo.s32 %r5, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        Case("mad.hi.u32 %r5, %r1, %r2, %r3;", |a, b, c| {
            ((a as u32 as u64 * (b as u32 as u64)) >> 32).wrapping_add(c)
        }),
        Case("mad.wide.u32 %rd5, %r1, %r2, %rd4;", |a, b, c| {
            (a as u32 as u64 * (b as u32 as u64)).wrapping_add(c)
        }),
        Case("mad.wide.s32 %rd5, %r1, %r2, %rd4;", |a, b, c| {
            (a as i32 as i64 * (b as i32 as i64)).wrapping_add(c as i64) as u64
        }),
        Case("div.u32 %r5, %r1, %r2;", |a, b, _| (a as u32).checked_div(b as u32).unwrap_or(!0) as u64),
        Case("rem.u32 %r5, %r1, %r2;", |a, b, _| (a as u32).checked_rem(b as u32).unwrap_or(a as u32) as u64),
        Case("div.s32 %r5, %r1, 7;", |a, _, _| (a as i32 / 7) as u64),
        Case("rem.s32 %r5, %r1, 7;", |a, _, _| (a as i32 % 7) as u64),
        Case("min.s32 %r5, %r1, %r2;", |a, b, _| (a as i32).min(b as i32) as u64),
        Case("max.u32 %r5, %r1, %r2;", |a, b, _| (a as u32).max(b as u32) as u64),
        Case("abs.s32 %r5, %r1;", |a, _, _| (a as i32).wrapping_abs() as u64),
        Case("neg.s32 %r5, %r1;", |a, _, _| a.wrapping_neg()),
        Case("sad.s32 %r5, %r1, %r2, %r3;", |a, b, c| {
            u64::from((a as i32).abs_diff(b as i32)).wrapping_add(c)
        }),
        Case("dp4a.s32.u32 %r5, %r1, %r2, %r3;", |a, b, c| {
            let product = |k: u32| i64::from((a >> (8 * k)) as i8) * i64::from((b >> (8 * k)) as u8);
            (c as i32 as i64 + (0..4).map(product).sum::<i64>()) as u64
        }),
    ]);
}

#[test]
fn integers_of_16_and_64_bits() {
    check(&[
        Case("add.s16 %rs5, %rs1, %rs2;", |a, b, _| a.wrapping_add(b)),
        Case("mul.lo.s16 %rs5, %rs1, %rs2;", |a, b, _| a.wrapping_mul(b)),
        Case("mul.wide.u16 %r5, %rs1, %rs2;", |a, b, _| (a & 0xffff) * (b & 0xffff)),
        Case("mul.wide.s16 %r5, %rs1, %rs2;", |a, b, _| (a as i16 as i64 * (b as i16 as i64)) as u64),
        Case("min.s16 %rs5, %rs1, %rs2;", |a, b, _| (a as i16).min(b as i16) as u64),
        Case("shr.s16 %rs5, %rs1, %r2;", |a, b, _| ((a as i16) >> (b as u32).min(15)) as u64),
        Case("shr.u16 %rs5, %rs1, %r2;", |a, b, _| (a & 0xffff).checked_shr(b as u32).unwrap_or(0)),
        Case("not.b16 %rs5, %rs1;", |a, _, _| !a),
        Case("sub.s64 %rd5, %rd2, %rd3;", |a, b, _| a.wrapping_sub(b)),
        Case("mul.lo.u64 %rd5, %rd2, %rd3;", |a, b, _| a.wrapping_mul(b)),
        Case("mul.hi.u64 %rd5, %rd2, %rd3;", |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Case("mul.hi.s64 %rd5, %rd2, %rd3;", |a, b, _| {
            ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
        }),
        Case("mad.lo.s64 %rd5, %rd2, %rd3, %rd4;", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        Case("div.u64 %rd5, %rd2, 10;", |a, _, _| a / 10),
        Case("rem.s64 %rd5, %rd2, -10;", |a, _, _| (a as i64 % -10) as u64),
        Case("max.s64 %rd5, %rd2, %rd3;", |a, b, _| (a as i64).max(b as i64) as u64),
        Case("abs.s64 %rd5, %rd2;", |a, _, _| (a as i64).wrapping_abs() as u64),
        Case("shl.b64 %rd5, %rd2, %r2;", |a, b, _| a.checked_shl(b as u32).unwrap_or(0)),
        Case("shr.s64 %rd5, %rd2, %r2;", |a, b, _| ((a as i64) >> (b as u32).min(63)) as u64),
        Case("xor.b64 %rd5, %rd2, %rd3;", |a, b, _| a ^ b),
    ]);
}

#[test]
fn bits() {
    check(&[
        Case("and.b32 %r5, %r1, %r2;", |a, b, _| a & b),
        Case("or.b32 %r5, %r1, %r2;", |a, b, _| a | b),
        Case("xor.b32 %r5, %r1, 0xff00ff;", |a, _, _| a ^ 0xff_00ff),
        Case("not.b32 %r5, %r1;", |a, _, _| !a),
        Case("cnot.b32 %r5, %r1;", |a, _, _| u64::from(a as u32 == 0)),
        Case("shl.b32 %r5, %r1, %r2;", |a, b, _| (a as u32).checked_shl(b as u32).unwrap_or(0) as u64),
        Case("shr.u32 %r5, %r1, %r2;", |a, b, _| (a as u32).checked_shr(b as u32).unwrap_or(0) as u64),
        Case("shr.s32 %r5, %r1, %r2;", |a, b, _| ((a as i32) >> (b as u32).min(31)) as u64),
        Case("shf.l.wrap.b32 %r5, %r1, %r2, %r3;", |a, b, c| ((b << 32 | a & 0xffff_ffff) << (c & 31)) >> 32),
        Case("shf.r.clamp.b32 %r5, %r1, %r2, %r3;", |a, b, c| {
            (b << 32 | a & 0xffff_ffff) >> (c as u32).min(32)
        }),
        Case("popc.b32 %r5, %r1;", |a, _, _| (a as u32).count_ones() as u64),
        Case("popc.b64 %r5, %rd2;", |a, _, _| a.count_ones() as u64),
        Case("clz.b32 %r5, %r1;", |a, _, _| (a as u32).leading_zeros() as u64),
        Case("clz.b64 %r5, %rd2;", |a, _, _| a.leading_zeros() as u64),
        Case("brev.b32 %r5, %r1;", |a, _, _| (a as u32).reverse_bits() as u64),
        Case("bfind.u32 %r5, %r1;", |a, _, _| (a as u32).checked_ilog2().unwrap_or(!0) as u64),
        Case("bfind.shiftamt.u32 %r5, %r1;", |a, _, _| {
            (a as u32).checked_ilog2().map_or(!0, |highest| 31 - highest) as u64
        }),
        // As the pseudocode of the PTX manual has it, bit by bit.
        Case("bfe.u32 %r5, %r1, %r2, %r3;", |a, p, n| {
            let (p, n) = (p & 255, n & 255);
            (0..n.min(32)).filter(|k| p + k < 32).map(|k| (a >> (p + k) & 1) << k).sum()
        }),
        Case("bfe.s32 %r5, %r1, %r2, %r3;", |a, p, n| {
            let (p, n) = (p & 255, n & 255);
            let sign = if n == 0 { 0 } else { a >> (p + n - 1).min(31) & 1 };
            (0..32).map(|k| if k < n && p + k < 32 { (a >> (p + k) & 1) << k } else { sign << k }).sum()
        }),
        Case("bfi.b32 %r5, %r1, %r2, 5, 9;", |a, b, _| b & !(0x1ff << 5) | (a & 0x1ff) << 5),
        Case("bfi.b32 %r5, %r1, %r2, 24, 32;", |a, b, _| b & 0xff_ffff | a << 24),
        Case("prmt.b32 %r5, %r1, %r2, %r3;", |a, b, c| {
            let bytes = [a as u32, b as u32].map(u32::to_le_bytes).concat();
            let choose = |k: u64| {
                let byte = bytes[(c >> (4 * k) & 7) as usize];
                if c >> (4 * k) & 8 == 0 { byte } else { 0u8.wrapping_sub(byte >> 7) }
            };
            (0..4).map(|k| u64::from(choose(k)) << (8 * k)).sum()
        }),
        Case("lop3.b32 %r5, %r1, %r2, %r3, 0xe8;", |a, b, c| (a & b) | (a & c) | (b & c)),
        Case("lop3.b32 %r5, %r1, %r2, %r3, 0x96;", |a, b, c| a ^ b ^ c),
        Case("selp.b32 %r5, %r1, %r2, %p2;", |a, b, c| if c as i32 > 0 { a } else { b }),
        Case("selp.f64 %fd5, %fd1, %fd2, %p2;", |a, b, c| if c as i32 > 0 { a } else { b }),
        Case("slct.u32.s32 %r5, %r1, %r2, %r3;", |a, b, c| if c as i32 >= 0 { a } else { b }),
    ]);
}

#[test]
fn floats_of_32_bits() {
    check(&[
        Case("add.f32 %f5, %f1, %f2;", |a, b, _| r(f(a) + f(b))),
        Case("sub.rn.f32 %f5, %f1, %f2;", |a, b, _| r(f(a) - f(b))),
        Case("mul.f32 %f5, %f1, 0f40490FDB;", |a, _, _| r(f(a) * std::f32::consts::PI)),
        Case("fma.rn.f32 %f5, %f1, %f2, %f3;", |a, b, c| r(f(a).mul_add(f(b), f(c)))),
        Case("div.rn.f32 %f5, %f1, %f2;", |a, b, _| r(f(a) / f(b))),
        Case("rcp.rn.f32 %f5, %f1;", |a, _, _| r(1.0 / f(a))),
        Case("sqrt.rn.f32 %f5, %f1;", |a, _, _| r(f(a).sqrt())),
        Case("rsqrt.approx.f32 %f5, %f1;", |a, _, _| r(1.0 / f(a).sqrt())),
        Case("abs.f32 %f5, %f1;", |a, _, _| a & 0x7fff_ffff),
        Case("neg.f32 %f5, %f1;", |a, _, _| a ^ 0x8000_0000),
        Case("min.f32 %f5, %f1, %f2;", |a, b, _| r(minimum(f(a), f(b)))),
        Case("max.f32 %f5, %f1, %f2;", |a, b, _| r(-minimum(-f(a), -f(b)))),
        Case("max.NaN.f32 %f5, %f1, %f2;", |a, b, _| {
            r(if f(a).is_nan() || f(b).is_nan() { f32::NAN } else { -minimum(-f(a), -f(b)) })
        }),
        Case("add.ftz.f32 %f5, %f1, %f2;", |a, b, _| r(ftz(ftz(f(a)) + ftz(f(b))))),
        Case("mul.sat.f32 %f5, %f1, %f2;", |a, b, _| r((f(a) * f(b)).max(0.0).min(1.0) + 0.0)),
        Case("cvt.sat.f32.f32 %f5, %f1;", |a, _, _| r(f(a).max(0.0).min(1.0) + 0.0)),
        Case("copysign.f32 %f5, %f1, %f2;", |a, b, _| a & 0x8000_0000 | b & 0x7fff_ffff),
    ]);
}

fn minimum(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b && a.is_sign_negative() => a,
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    }
}

fn ftz(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

#[test]
fn directed_rounding_brackets_the_exact_value() {
    // The exact sum or product of two f32 needs up to 277 bits; those of moderate values fit f64.
    let toward_zero = |exact: f64| {
        let near = exact as f32;
        if f64::from(near).abs() > exact.abs() { f32::from_bits(near.to_bits() - 1) } else { near }
    };
    let values = [1.0f32, 1.000_000_1, -3.3, 1e-3, 12_345.678, -0.5, 7.0, 16_777_215.0];
    for a in values {
        for b in values {
            let pairs: Vec<[f32; 4]> = vec![[a, b, 0.0, 0.0]; 32];
            let body = "mad.wide.u32 %rd1, %r0, 16, %rd0; ld.global.v2.f32 {%f1, %f2}, [%rd1];
                add.rz.f32 %f3, %f1, %f2; mul.rz.f32 %f4, %f1, %f2; st.global.v2.f32 [%rd1+8], {%f3, %f4};";
            let result = crate::support::run(body, &pairs, 1, 32, Mode::Fast).unwrap();
            let wide = |x: f32| f64::from(x);
            assert_eq!(result[31][2], toward_zero(wide(a) + wide(b)), "{a} + {b}");
            assert_eq!(result[31][3], toward_zero(wide(a) * wide(b)), "{a} * {b}");
            let directed = body.replace("add.rz", "add.rm").replace("mul.rz", "add.rp");
            let result = crate::support::run(&directed, &pairs, 1, 32, Mode::Fast).unwrap();
            let [.., down, up] = result[0];
            let exact = wide(a) + wide(b);
            assert!(
                wide(down) <= exact && exact <= wide(up) && (down == up || down.next_up() == up),
                "{a} + {b}"
            );
        }
    }
}

#[test]
fn floats_of_64_bits() {
    check(&[
        Case("neg.f64 %fd5, %fd1;", |a, _, _| a ^ 1 << 63),
        Case("abs.f64 %fd5, %fd1;", |a, _, _| a & !(1 << 63)),
        Case("setp.lt.f64 %p5, %fd1, %fd2;", |a, b, _| u64::from(d(a) < d(b))),
        Case("cvt.rn.f64.s64 %fd5, %rd2;", |a, _, _| (a as i64 as f64).to_bits()),
        Case("cvt.rn.f64.u32 %fd5, %r1;", |a, _, _| f64::from(a as u32).to_bits()),
        Case(
            "cvt.rzi.s64.f64 %rd5, %fd1;",
            |a, _, _| if d(a).is_nan() { 1 << 63 } else { d(a) as i64 as u64 },
        ),
        Case("cvt.rn.f32.f64 %f5, %fd1;", |a, _, _| r(d(a) as f32)),
    ]);
}

#[test]
fn arithmetic_of_64_bits_is_that_of_doubles() {
    // Values without NaN, whose payloads are not specified.
    let values: Vec<[f64; 4]> =
        (0..32).map(|n| [f64::from(n) * 1.37 - 20.0, 0.1 + f64::from(n), 0.3, 0.0]).collect();
    type Function = fn(f64, f64, f64) -> f64;
    let cases: [(&str, Function); 7] = [
        ("add.f64 %fd4, %fd1, %fd2;", |a, b, _| a + b),
        ("mul.rn.f64 %fd4, %fd1, %fd2;", |a, b, _| a * b),
        ("fma.rn.f64 %fd4, %fd1, %fd2, %fd3;", f64::mul_add),
        ("div.rn.f64 %fd4, %fd1, %fd2;", |a, b, _| a / b),
        ("sqrt.rn.f64 %fd4, %fd2;", |_, b, _| b.sqrt()),
        ("min.f64 %fd4, %fd1, %fd2;", |a, b, _| a.min(b)),
        ("max.f64 %fd4, %fd1, %fd2;", |a, b, _| a.max(b)),
    ];
    for (instruction, expected) in cases {
        let body = format!(
            "mad.wide.u32 %rd1, %r0, 32, %rd0; ld.global.v2.f64 {{%fd1, %fd2}}, [%rd1]; ld.global.f64 %fd3, [%rd1+16];
            {instruction} st.global.f64 [%rd1+24], %fd4;"
        );
        for [a, b, c, found] in crate::support::run(&body, &values, 1, 32, Mode::Fast).unwrap() {
            assert_eq!(found, expected(a, b, c), "{instruction} of {a}, {b}, {c}");
        }
    }
}

#[test]
fn comparisons() {
    check(&[
        Case("setp.eq.s32 %p5, %r1, %r2;", |a, b, _| u64::from(a as u32 == b as u32)),
        Case("setp.lt.s32 %p5, %r1, %r2;", |a, b, _| u64::from((a as i32) < b as i32)),
        Case("setp.hi.u32 %p5, %r1, %r2;", |a, b, _| u64::from(a as u32 > b as u32)),
        Case("setp.ge.u64 %p5, %rd2, %rd3;", |a, b, _| u64::from(a >= b)),
        Case("setp.ne.s16 %p5, %rs1, %rs2;", |a, b, _| u64::from(a as u16 != b as u16)),
        Case("setp.le.s16 %p5, %rs1, %rs2;", |a, b, _| u64::from(a as i16 <= b as i16)),
        Case("setp.lt.f32 %p5, %f1, %f2;", |a, b, _| u64::from(f(a) < f(b))),
        Case("setp.ne.f32 %p5, %f1, %f2;", |a, b, _| u64::from(f(a) < f(b) || f(a) > f(b))),
        Case("setp.neu.f32 %p5, %f1, %f2;", |a, b, _| u64::from(f(a) != f(b))),
        Case("setp.equ.f32 %p5, %f1, %f2;", |a, b, _| {
            u64::from(f(a) == f(b) || f(a).is_nan() || f(b).is_nan())
        }),
        Case("setp.geu.f32 %p5, %f1, %f2;", |a, b, _| {
            u64::from(f(a) >= f(b) || f(a).is_nan() || f(b).is_nan())
        }),
        Case("setp.nan.f32 %p5, %f1, %f2;", |a, b, _| u64::from(f(a).is_nan() || f(b).is_nan())),
        Case("setp.num.f32 %p5, %f1, %f2;", |a, b, _| u64::from(!f(a).is_nan() && !f(b).is_nan())),
        Case("setp.gt.ftz.f32 %p5, %f1, %f2;", |a, b, _| u64::from(ftz(f(a)) > ftz(f(b)))),
        Case("setp.lt.and.s32 %p5, %r1, %r2, %p2;", |a, b, c| {
            u64::from((a as i32) < b as i32 && c as i32 > 0)
        }),
        Case("setp.lt.or.s32 %p5, %r1, %r2, !%p2;", |a, b, c| {
            u64::from((a as i32) < b as i32 || c as i32 <= 0)
        }),
        Case("setp.lt.xor.s32 %p5, %r1, %r2, %p2;", |a, b, c| {
            u64::from(((a as i32) < b as i32) ^ (c as i32 > 0))
        }),
    ]);
}

#[test]
fn conversions() {
    check(&[
        Case("cvt.u64.u32 %rd5, %r1;", |a, _, _| a as u32 as u64),
        Case("cvt.s64.s32 %rd5, %r1;", |a, _, _| a as i32 as u64),
        Case("cvt.s32.s16 %r5, %rs1;", |a, _, _| a as i16 as u64),
        Case("cvt.u32.u16 %r5, %rs1;", |a, _, _| a as u16 as u64),
        Case("cvt.s32.s8 %r5, %r1;", |a, _, _| a as i8 as u64),
        Case("cvt.u16.u32 %rs5, %r1;", |a, _, _| a),
        Case("cvt.s64.s8 %rd5, %rs1;", |a, _, _| a as i8 as u64),
        Case("cvt.s8.s32 %r5, %r1;", |a, _, _| a as i8 as u64),
        Case("cvt.u8.u32 %rs5, %r1;", |a, _, _| a as u8 as u64),
        Case("cvt.sat.u8.s32 %rs5, %r1;", |a, _, _| (a as i32).clamp(0, 255) as u64),
        Case("cvt.sat.s16.s64 %rs5, %rd2;", |a, _, _| (a as i64).clamp(-32_768, 32_767) as u64),
        Case("cvt.rn.f32.s32 %f5, %r1;", |a, _, _| r(a as i32 as f32)),
        Case("cvt.rn.f32.u64 %f5, %rd2;", |a, _, _| r(a as f32)),
        Case("cvt.rzi.s32.f32 %r5, %f1;", |a, _, _| f(a) as i32 as u64),
        Case("cvt.rni.s32.f32 %r5, %f1;", |a, _, _| f(a).round_ties_even() as i32 as u64),
        Case("cvt.rmi.s32.f32 %r5, %f1;", |a, _, _| f(a).floor() as i32 as u64),
        Case("cvt.rpi.u32.f32 %r5, %f1;", |a, _, _| f(a).ceil() as u32 as u64),
        Case("cvt.rni.f32.f32 %f5, %f1;", |a, _, _| r(f(a).round_ties_even())),
        Case("cvt.rzi.f32.f32 %f5, %f1;", |a, _, _| r(f(a).trunc())),
        Case("cvt.rmi.ftz.f32.f32 %f5, %f1;", |a, _, _| r(ftz(f(a)).floor())),
        Case("cvt.rna.tf32.f32 %r5, %f1;", |a, _, _| {
            if f(a).is_nan() { 0x7fff_ffff } else { (a as u32).wrapping_add(0x1000) as u64 & 0xffff_e000 }
        }),
        Case("cvt.rz.bf16.f32 %rs5, %f1;", |a, _, _| if f(a).is_nan() { 0x7fff } else { a >> 16 & 0xffff }),
        Case("mov.b32 %f5, %r1;", |a, _, _| a),
        Case("mov.b32 %r5, {%rs1, %rs2};", |a, b, _| a & 0xffff | b << 16),
        Case("mov.b64 %rd5, {%r1, %r2};", |a, b, _| a & 0xffff_ffff | b << 32),
    ]);
}

#[test]
fn functions_that_a_gpu_approximates_are_within_one_unit_in_the_last_place() {
    type Function = fn(f64) -> f64;
    let cases: [(&str, f32, f32, Function); 7] = [
        ("ex2.approx.f32", -140.0, 127.5, f64::exp2),
        ("ex2.approx.ftz.f32", -20.0, 20.0, f64::exp2),
        ("lg2.approx.f32", 1e-38, 1e5, f64::log2),
        ("sin.approx.f32", -300.0, 300.0, f64::sin),
        ("cos.approx.f32", -300.0, 300.0, f64::cos),
        ("tanh.approx.f32", -12.0, 12.0, f64::tanh),
        ("tanh.approx.f32", -1e-3, 1e-3, f64::tanh),
    ];
    for (instruction, low, high, exact) in cases {
        let values: Vec<f32> = (0..1024).map(|n| low + (high - low) * (n as f32 + 0.37) / 1024.0).collect();
        let body = text(&format!(
            "mad.wide.u32 %rd1, %r0, 4, %rd0; ld.global.f32 %f1, [%rd1]; {instruction} %f2, %f1; st.global.f32 [%rd1], %f2;"
        ));
        let [fast, portable] = [Module::parse(&body), Module::parse_portable(&body)]
            .map(|module| run_module(&module.unwrap(), &values, 1, 1024, Mode::Fast).unwrap());
        for ((x, found), same) in values.iter().zip(fast).zip(portable) {
            assert_eq!(found.to_bits(), same.to_bits(), "{instruction} of {x}");
            let wanted = exact(f64::from(*x)) as f32;
            let units = i64::from(found.to_bits()) - i64::from(wanted.to_bits());
            assert!(units.abs() <= 1, "{instruction} of {x}: {found}, not {wanted}");
        }
    }
}

#[test]
fn approximations_have_the_special_values_of_the_manual() {
    let nan = f32::from_bits(0x7fff_ffff);
    let inf = f32::INFINITY;
    let cases = [
        ("ex2.approx.f32", [(inf, inf), (-inf, 0.0), (0.0, 1.0), (nan, nan)]),
        ("lg2.approx.f32", [(inf, inf), (0.0, -inf), (-0.0, -inf), (-1.0, nan)]),
        ("sin.approx.f32", [(inf, nan), (0.0, 0.0), (-0.0, -0.0), (nan, nan)]),
        ("cos.approx.f32", [(inf, nan), (0.0, 1.0), (-0.0, 1.0), (nan, nan)]),
        ("tanh.approx.f32", [(inf, 1.0), (-inf, -1.0), (0.0, 0.0), (nan, nan)]),
        ("rsqrt.approx.f32", [(inf, 0.0), (0.0, inf), (-1.0, nan), (4.0, 0.5)]),
    ];
    for (instruction, values) in cases {
        let body = format!(
            "mad.wide.u32 %rd1, %r0, 4, %rd0; ld.global.f32 %f1, [%rd1]; {instruction} %f2, %f1; st.global.f32 [%rd1], %f2;"
        );
        let result = crate::support::run(&body, &values.map(|(x, _)| x), 1, 4, Mode::Fast).unwrap();
        let found = result.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(found, values.map(|(_, wanted)| wanted.to_bits()), "{instruction}");
    }
}

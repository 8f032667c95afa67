//! f16 and bf16: every value of 16 bits widened, random f32 narrowed to the nearest, and arithmetic rounded once.

use sluice_ptx::Mode;

use crate::support::{Random, run};

/// The value of an f16 by its definition, or `None` for NaN.
fn f16(bits: u32) -> Option<f64> {
    let (exponent, mantissa) = (bits >> 10 & 31, f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => return None,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent as i32 - 25),
    };
    Some(if bits & 0x8000 != 0 { -magnitude } else { magnitude })
}

/// The value of a bf16 by its definition, or `None` for NaN.
fn bf16(bits: u32) -> Option<f64> {
    let value = f64::from(f32::from_bits(bits << 16));
    (!value.is_nan()).then_some(value)
}

/// The bits of the nearest finite or infinite half, ties to even, found by bisection of the magnitudes.
fn nearest(value: f64, of: fn(u32) -> Option<f64>, infinity: u32) -> u32 {
    let (sign, magnitude) = (if value.is_sign_negative() { 0x8000 } else { 0 }, value.abs());
    let above =
        (0..=infinity).collect::<Vec<_>>().partition_point(|bits| of(*bits).unwrap() < magnitude) as u32;
    if above == 0 || above > infinity || of(above) == Some(magnitude) {
        return sign | above.min(infinity);
    }
    // Beyond the largest value the next step counts as the next power of two, as IEEE 754 has it.
    let low = of(above - 1).unwrap();
    let high = if above == infinity { 2.0 * low - of(above - 2).unwrap() } else { of(above).unwrap() };
    let (down, up) = (magnitude - low, high - magnitude);
    let even = if above.is_multiple_of(2) { above } else { above - 1 };
    sign | if down < up {
        above - 1
    } else if up < down {
        above
    } else {
        even
    }
}

#[test]
fn every_half_is_widened_to_its_value() {
    for (ty, of) in [("f16", f16 as fn(u32) -> Option<f64>), ("bf16", bf16)] {
        let data: Vec<u32> = (0..1 << 16).collect();
        let body = format!(
            "mov.u32 %r1, %ctaid.x; mad.lo.u32 %r1, %r1, 1024, %r0; mad.wide.u32 %rd1, %r1, 4, %rd0;
            ld.global.u16 %rs1, [%rd1]; cvt.f32.{ty} %f1, %rs1; st.global.f32 [%rd1], %f1;"
        );
        for (bits, found) in run(&body, &data, 64, 1024, Mode::Fast).unwrap().into_iter().enumerate() {
            let found = f32::from_bits(found);
            match of(bits as u32) {
                Some(wanted) => assert_eq!(f64::from(found), wanted, "{ty} {bits:#x}"),
                None => assert!(found.is_nan()),
            }
            assert!(found.is_nan() || found.is_sign_negative() == (bits & 0x8000 != 0));
        }
    }
}

#[test]
fn floats_are_narrowed_to_the_nearest_half() {
    let mut random = Random::new(3);
    let mut values: Vec<f32> =
        vec![0.0, -0.0, 65_504.0, 65_519.9, 65_520.0, 1e-8, 6e-8, 2f32.powi(-25), 3.4e38];
    // Halfway between two f16, and near it.
    values.extend((0..300).map(|_| {
        (1.0 + (random.next() % 2048) as f32 / 2048.0) * 2f32.powi((random.next() % 42) as i32 - 26)
    }));
    values.extend(
        (0..203).map(|_| f32::from_bits(random.next() as u32)).map(|x| if x.is_nan() { 1.5 } else { x }),
    );
    for (ty, of, infinity) in [("f16", f16 as fn(u32) -> Option<f64>, 0x7c00), ("bf16", bf16, 0x7f80)] {
        let data: Vec<[f32; 4]> = values.iter().map(|x| [*x, -*x, 0.0, 0.0]).collect();
        let body = format!(
            "mad.wide.u32 %rd1, %r0, 16, %rd0; ld.global.v2.f32 {{%f1, %f2}}, [%rd1];
            cvt.rn.{ty}.f32 %rs1, %f1; st.global.u16 [%rd1+8], %rs1;
            cvt.rn.{ty}x2.f32 %r1, %f1, %f2; st.global.u32 [%rd1+12], %r1;"
        );
        for [x, _, one, pair] in run(&body, &data, 1, 512, Mode::Fast).unwrap() {
            let wanted = nearest(f64::from(x), of, infinity);
            assert_eq!(one.to_bits() & 0xffff, wanted, "{ty} of {x:e}");
            assert_eq!(pair.to_bits(), wanted << 16 | (wanted ^ 0x8000), "{ty}x2 of {x:e}");
        }
    }
}

#[test]
fn arithmetic_of_halves_is_rounded_once() {
    let mut random = Random::new(4);
    let data: Vec<[u32; 4]> =
        (0..512).map(|_| [0; 4].map(|_: u32| random.next() as u32 & 0xbfff_bfff)).collect();
    type Exact = fn(f64, f64, f64) -> f64;
    let operations: [(&str, Exact); 4] = [
        ("add", |a, b, _| a + b),
        ("sub", |a, b, _| a - b),
        ("mul", |a, b, _| a * b),
        ("fma.rn", |a, b, c| a.mul_add(b, c)),
    ];
    for (name, exact) in operations {
        let sources = if name == "fma.rn" { "%r1, %r2, %r3" } else { "%r1, %r2" };
        let body = format!(
            "mad.wide.u32 %rd1, %r0, 16, %rd0; ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%rd1];
            {name}.f16x2 %r4, {sources}; st.global.u32 [%rd1+12], %r4;"
        );
        for [a, b, c, found] in run(&body, &data, 1, 512, Mode::Fast).unwrap() {
            for shift in [0, 16] {
                let value = |bits: u32| f16(bits >> shift & 0xffff).unwrap();
                let (x, y, z) = (value(a), value(b), value(c));
                let wanted = nearest(exact(x, y, z), f16, 0x7c00);
                assert_eq!(found >> shift & 0xffff, wanted, "{name} of {x}, {y}, {z}");
            }
        }
    }
}

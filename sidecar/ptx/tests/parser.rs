//! The parser refuses what it does not know, by line and reason, and never panics.

use sluice_ptx::Module;

use crate::support::{Random, text};

/// The reason why `body` is refused.
fn reason(body: &str) -> String {
    let error = Module::parse(&text(body)).unwrap_err();
    assert_eq!(error.line, 15, "{error}");
    error.reason
}

#[test]
fn what_is_unknown_is_refused_by_line_and_reason() {
    Module::parse(&text("add.u32 %r1, %r0, 1;")).unwrap();
    assert_eq!(reason("add.foo.u32 %r1, %r0, 1;"), "unknown modifier .foo");
    assert_eq!(reason("ld.global.L3::hint.u32 %r1, [%rd0];"), "unknown modifier .L3::hint");
    assert_eq!(reason("wgmma.fence.sync.aligned;"), "unknown instruction, or not of this type");
    assert_eq!(reason("add.u32 %r1, %r0;"), "2 operands, not 3");
    assert_eq!(reason("add.u32 %r1, %rd0, 1;"), "%rd0 has another size than the type");
    assert_eq!(reason("add.u32 %r1, %r99, 1;"), "unknown name %r99");
    assert_eq!(reason("add.u32 5, %r0, 1;"), "5 is not a register");
    assert_eq!(reason("bra NOWHERE;"), "no label NOWHERE");
    assert_eq!(reason("@%r0 bra X; X:"), "%r0 is not a predicate");
    assert_eq!(reason("call.uni f;"), "unknown instruction, or not of this type");
    assert_eq!(
        reason("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};"),
        "mma of this shape"
    );
    assert_eq!(reason("ld.param.u32 %r1, [q];"), "unknown name q");
    let error = Module::parse(".version 8.0\n.target sm_80\n.func f() { ret; }").unwrap_err();
    assert_eq!((error.line, error.reason.as_str()), (3, "unknown directive .func"));
}

#[test]
fn no_text_makes_the_parser_panic() {
    let probe = include_str!("../../probe/cuda/probe.ptx");
    let mut random = Random::new(21);
    let mut parsed = 0;
    // Around one kernel: long texts spend the time on what was not changed.
    let small = text(
        "{ .reg .b32 t; mov.b32 t, {%rs1, %rs2}; } T: .branchtargets A, A; brx.idx %r0, T; A: @!%p1 shfl.sync.up.b32 %r1|%p1, \
         %r0, 1, 0, -1; .loc 1 2 3\n ld.global.v2.u32 {%r1, _}, [%rd0+-8]; mul.f32 %f1, 0f3F800000, -1.5;",
    );
    Module::parse(&small).unwrap();
    for round in 0..4000 {
        let mut bytes = if round % 40 == 0 { probe.as_bytes().to_vec() } else { small.as_bytes().to_vec() };
        for _ in 0..=random.next() % 4 {
            let at = (random.next() % bytes.len() as u64) as usize;
            let to = at + (random.next() % 40).min((bytes.len() - at) as u64) as usize;
            match random.next() % 4 {
                0 => bytes[at] = (random.next() % 128) as u8,
                1 => drop(bytes.drain(at..to)),
                2 => {
                    let piece = bytes[at..to].to_vec();
                    let place = (random.next() % bytes.len() as u64) as usize;
                    bytes.splice(place..place, piece);
                }
                _ => bytes.insert(at, b"{}[]();,.%@-|:<>\"/*0xf="[(random.next() % 23) as usize]),
            }
        }
        parsed += u32::from(Module::parse(&String::from_utf8_lossy(&bytes)).is_ok());
    }
    assert!(parsed > 0, "some changes do no harm");
    for length in 0..200u64 {
        let noise: Vec<u8> = (0..length).map(|_| (random.next() % 256) as u8).collect();
        let _ = Module::parse(&String::from_utf8_lossy(&noise));
    }
}

#[test]
fn numbers_that_would_overflow_are_refused() {
    for text in [
        ".shared .b8 s[99999999999999999999];",
        ".global .align 4 .b8 g[2000000000];",
        ".const .align 3 .b8 g[2];",
        ".global .u32 g[1] = {1, 2};",
        ".visible .entry k() .maxntid 70000, 70000, 70000 { ret; }",
        ".visible .entry k() { .reg .b64 %rd<4000000000>; ret; }",
        ".visible .entry k(.param .align 8 .b8 p[1000000000], .param .align 8 .b8 q[1000000000]) { .local .b8 l[9999999999]; }",
    ] {
        Module::parse(text).unwrap_err();
    }
}

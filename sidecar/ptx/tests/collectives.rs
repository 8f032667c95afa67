//! Instructions of whole warps: shuffles, votes, matches, reductions, matrices.

use sluice_ptx::Mode;

use crate::support::{Random, run};

/// Runs `body`, which stores `%r9` of each thread.
fn each(body: &str, threads: u32) -> Vec<u32> {
    let body = format!("{body} mad.wide.u32 %rd9, %r0, 4, %rd0; st.global.u32 [%rd9], %r9;");
    run(&body, &vec![0u32; threads as usize], 1, threads, Mode::Checked).unwrap()
}

#[test]
fn shuffles_read_the_lanes_that_the_manual_names() {
    for width in [32u32, 16, 8] {
        for b in [0u32, 1, 3, 5, 17] {
            for mode in ["up", "down", "bfly", "idx"] {
                let c = if mode == "up" { (32 - width) << 8 } else { (32 - width) << 8 | 0x1f };
                let body = format!(
                    "add.u32 %r1, %r0, 100; shfl.sync.{mode}.b32 %r9|%p1, %r1, {b}, {c}, 0xffffffff;
                    @!%p1 add.u32 %r9, %r9, 1000;"
                );
                let found = each(&body, 32);
                for lane in 0..32u32 {
                    let (start, within) = (lane / width * width, lane % width);
                    let (from, reached) = match mode {
                        "up" => (lane.wrapping_sub(b), within >= b),
                        "down" => (lane + b, within + b < width),
                        "bfly" => (lane ^ b, lane ^ b < start + width),
                        _ => (start + b % width, true),
                    };
                    let wanted = if reached { 100 + from } else { 1100 + lane };
                    assert_eq!(found[lane as usize], wanted, "{mode} {b} of {width}, lane {lane}");
                }
            }
        }
    }
}

#[test]
fn votes_and_masks_count_the_lanes_that_take_part() {
    let odd = "and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 1;";
    assert_eq!(each(&format!("{odd} vote.sync.ballot.b32 %r9, %p1, 0xffffffff;"), 32), [0xaaaa_aaaa; 32]);
    assert_eq!(each(&format!("{odd} vote.sync.ballot.b32 %r9, !%p1, 0xffffffff;"), 32), [0x5555_5555; 32]);
    for (vote, wanted) in [("all", 0), ("any", 1), ("uni", 0)] {
        let body = format!("{odd} vote.sync.{vote}.pred %p2, %p1, 0xffffffff; selp.u32 %r9, 1, 0, %p2;");
        assert_eq!(each(&body, 32), [wanted; 32], "{vote}");
        let alike = body.replace("setp.eq.u32 %p1, %r1, 1", "setp.le.u32 %p1, %r1, 1");
        assert_eq!(each(&alike, 32), [1; 32], "{vote}");
    }
    let body = format!("mov.u32 %r9, 0; {odd} @%p1 bra A; activemask.b32 %r9; A:");
    assert_eq!(each(&body, 4), [5, 0, 5, 0]);
    let some = "setp.lt.u32 %p1, %r0, 8; mov.u32 %r9, 0; @%p1 vote.sync.ballot.b32 %r9, %p1, 0xff;";
    assert_eq!(each(some, 32)[..9], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]);
}

#[test]
fn matches_and_reductions() {
    let found = each("rem.u32 %r1, %r0, 5; match.any.sync.b32 %r9, %r1, 0xffffffff;", 32);
    for lane in 0..32 {
        let wanted = (0..32).filter(|other| other % 5 == lane % 5).fold(0u32, |all, other| all | 1 << other);
        assert_eq!(found[lane], wanted);
    }
    let all = "match.all.sync.b32 %r9|%p1, %r1, 0xffffffff; @%p1 add.u32 %r9, %r9, 1;";
    assert_eq!(each(&format!("mov.u32 %r1, 7; {all}"), 32), [0; 32]);
    assert_eq!(each(&format!("mov.u32 %r1, %r0; {all}"), 32), [0; 32]);
    let value = "mul.lo.u32 %r1, %r0, 77; sub.u32 %r1, %r1, 1000;";
    let values: Vec<u32> = (0..32u32).map(|lane| (lane * 77).wrapping_sub(1000)).collect();
    let cases = [
        ("add.s32", values.iter().fold(0, |a, b| u32::wrapping_add(a, *b))),
        ("min.s32", *values.iter().min_by_key(|v| **v as i32).unwrap()),
        ("max.u32", *values.iter().max().unwrap()),
        ("and.b32", values.iter().fold(!0, |a, b| a & b)),
        ("or.b32", values.iter().fold(0, |a, b| a | b)),
        ("xor.b32", values.iter().fold(0, |a, b| a ^ b)),
    ];
    for (name, wanted) in cases {
        assert_eq!(
            each(&format!("{value} redux.sync.{name} %r9, %r1, 0xffffffff;"), 32),
            [wanted; 32],
            "{name}"
        );
    }
}

#[test]
fn a_barrier_reduces_predicates_of_all_warps() {
    let odd = "and.b32 %r1, %r0, 3; setp.eq.u32 %p1, %r1, 1;";
    assert_eq!(each(&format!("{odd} bar.red.popc.u32 %r9, 0, %p1;"), 96), [24; 96]);
    assert_eq!(each(&format!("{odd} bar.red.popc.u32 %r9, 0, !%p1;"), 96), [72; 96]);
    for (name, wanted) in [("and", 0), ("or", 1)] {
        let body = format!("{odd} bar.red.{name}.pred %p2, 0, %p1; selp.u32 %r9, 1, 0, %p2;");
        assert_eq!(each(&body, 96), [wanted; 96], "{name}");
    }
}

#[test]
fn warps_hand_over_by_named_barriers() {
    // Warp 0 writes and arrives; warp 1 waits for it, and reads.
    let body = "mov.u32 %r1, s; mov.u32 %r9, 0; setp.ge.u32 %p1, %r0, 32; @%p1 bra C;
        mad.lo.u32 %r2, %r0, 4, %r1; add.u32 %r3, %r0, 50; st.shared.u32 [%r2], %r3; bar.arrive 3, 64; bra E;
        C: bar.sync 3, 64; sub.u32 %r2, %r0, 32; mad.lo.u32 %r2, %r2, 4, %r1; ld.shared.u32 %r9, [%r2]; E:";
    let found = each(body, 64);
    assert_eq!(found[32..], (50..82).collect::<Vec<_>>());
    let racing = body.replace("C: bar.sync 3, 64;", "C:").replace("bar.arrive 3, 64;", "");
    let text = format!("bar.sync 0; {racing}");
    run(&text, &[0u32; 64], 1, 64, Mode::Checked).unwrap_err();
}

/// The bits of a bf16 that is exact.
fn bf16(value: i32) -> u32 {
    (value as f32).to_bits() >> 16
}

/// The bits of a small whole number as an f16.
fn f16(value: i32) -> u32 {
    let bits = (value as f32).to_bits();
    if value == 0 {
        0
    } else {
        bits >> 16 & 0x8000 | (((bits >> 23 & 0xff) - 112) << 10) | bits >> 13 & 0x3ff
    }
}

#[test]
fn products_of_matrices_of_small_integers_are_exact() {
    let mut random = Random::new(8);
    for (ty, of) in [("bf16", bf16 as fn(i32) -> u32), ("f16", f16)] {
        let mut small = || (random.next() % 17) as i32 - 8;
        let a: Vec<Vec<i32>> = (0..16).map(|_| (0..16).map(|_| small()).collect()).collect();
        let b: Vec<Vec<i32>> = (0..16).map(|_| (0..8).map(|_| small()).collect()).collect();
        let c: Vec<Vec<i32>> = (0..16).map(|_| (0..8).map(|_| small()).collect()).collect();
        // The layout of fragments in the PTX manual, in terms of g = lane / 4 and t = lane % 4.
        let data: Vec<[u32; 16]> = (0..32)
            .map(|lane| {
                let (g, t) = (lane / 4, lane % 4);
                let pair = |low: i32, high: i32| of(low) | of(high) << 16;
                let a = |row: usize, k: usize| pair(a[row][k], a[row][k + 1]);
                let b = |k: usize| pair(b[k][g], b[k + 1][g]);
                let c = |row: usize, n: usize| (c[row][n] as f32).to_bits();
                [
                    a(g, 2 * t),
                    a(g + 8, 2 * t),
                    a(g, 2 * t + 8),
                    a(g + 8, 2 * t + 8),
                    b(2 * t),
                    b(2 * t + 8),
                    0,
                    0,
                    c(g, 2 * t),
                    c(g, 2 * t + 1),
                    c(g + 8, 2 * t),
                    c(g + 8, 2 * t + 1),
                    0,
                    0,
                    0,
                    0,
                ]
            })
            .collect();
        let body = format!(
            "mad.wide.u32 %rd1, %r0, 64, %rd0; ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%rd1];
            ld.global.v2.u32 {{%r5, %r6}}, [%rd1+16]; ld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [%rd1+32];
            mma.sync.aligned.m16n8k16.row.col.f32.{ty}.{ty}.f32 {{%f5, %f6, %f7, %f8}}, {{%r1, %r2, %r3, %r4}},
                {{%r5, %r6}}, {{%f1, %f2, %f3, %f4}};
            st.global.v4.f32 [%rd1+48], {{%f5, %f6, %f7, %f8}};"
        );
        let found = run(&body, &data, 1, 32, Mode::Checked).unwrap();
        for lane in 0..32 {
            for part in 0..4 {
                let (row, n) = (lane / 4 + 8 * (part / 2), 2 * (lane % 4) + part % 2);
                let wanted = c[row][n] + (0..16).map(|k| a[row][k] * b[k][n]).sum::<i32>();
                assert_eq!(
                    f32::from_bits(found[lane][12 + part]),
                    wanted as f32,
                    "{ty} row {row}, column {n}"
                );
            }
        }
    }
}

#[test]
fn a_product_adds_in_the_order_of_k_with_one_rounding_each() {
    // Row 0 of A times column 0 of B: 2^24 + 1 + 1 stays 2^24 if each one is added alone, and 1 + 1 + 2^24 does not.
    let run_order = |first: bool| {
        let place = |k: u32, value: f32| (value.to_bits() >> 16) << (16 * (k % 2));
        let large = if first { [16_777_216.0, 1.0, 1.0] } else { [1.0, 1.0, 16_777_216.0] };
        let mut data = vec![[0u32; 8]; 32];
        data[0][0] = place(0, large[0]) | place(1, large[1]);
        data[1][0] = place(2, large[2]);
        (0..2).for_each(|lane| data[lane][1] = place(0, 1.0) | place(1, 1.0));
        let body = "mad.wide.u32 %rd1, %r0, 32, %rd0; ld.global.v2.u32 {%r1, %r2}, [%rd1]; mov.u32 %r3, 0;
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f5, %f6, _, _}, {%r1, %r3, %r3, %r3},
            {%r2, %r3}, {0f00000000, 0f00000000, 0f00000000, 0f00000000}; st.global.f32 [%rd1+8], %f5;";
        f32::from_bits(run(body, &data, 1, 32, Mode::Fast).unwrap()[0][2])
    };
    assert_eq!((run_order(true), run_order(false)), (16_777_216.0, 16_777_218.0));
}

#[test]
fn a_product_of_tf32_cuts_its_operands() {
    let mut data = vec![[0u32; 16]; 32];
    for (lane, words) in data.iter_mut().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        // A[row][k] = row + k, B[k][n] = k - n; lower bits of A must not count.
        let a = |row: usize, k: usize| ((row + k) as f32).to_bits() | 0x1fff;
        let b = |k: usize| (k as f32 - g as f32).to_bits();
        words[..6].copy_from_slice(&[a(g, t), a(g + 8, t), a(g, t + 4), a(g + 8, t + 4), b(t), b(t + 4)]);
    }
    let body = "mad.wide.u32 %rd1, %r0, 64, %rd0; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
        ld.global.v2.u32 {%r5, %r6}, [%rd1+16]; mov.f32 %f1, 0f00000000;
        mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f5, %f6, %f7, %f8}, {%r1, %r2, %r3, %r4}, {%r5, %r6},
        {%f1, %f1, %f1, %f1}; st.global.v4.f32 [%rd1+48], {%f5, %f6, %f7, %f8};";
    for (lane, words) in run(body, &data, 1, 32, Mode::Fast).unwrap().into_iter().enumerate() {
        for part in 0..4 {
            let (row, n) = (lane / 4 + 8 * (part / 2), 2 * (lane % 4) + part % 2);
            let wanted: i32 = (0..8).map(|k| (row as i32 + k) * (k - n as i32)).sum();
            // A of row 0, column 0 is 0 with lower bits, which cut is 0.
            assert_eq!(f32::from_bits(words[12 + part]), wanted as f32, "row {row}, column {n}");
        }
    }
}

#[test]
fn matrices_are_loaded_as_the_manual_lays_them_out() {
    // Shared memory holds words 0, 1, 2 and so on of 16 bits; row r of matrix m begins at word 8 (8 m + r).
    for (count, list) in [(1, "{%r1}"), (2, "{%r1, %r2}"), (4, "{%r1, %r2, %r3, %r4}")] {
        for (suffix, transposed) in [("", false), (".trans", true)] {
            let body = format!(
                "mov.u32 %r8, s; mov.u32 %r5, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0;
                L: mad.lo.u32 %r6, %r5, 32, %r0; shl.b32 %r7, %r6, 1; add.u32 %r7, %r7, %r8;
                cvt.u16.u32 %rs1, %r6; st.shared.u16 [%r7], %rs1; add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8;
                @%p1 bra L; bar.warp.sync 0xffffffff; mad.lo.u32 %r7, %r0, 16, %r8;
                ldmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 {list}, [%r7];
                mad.wide.u32 %rd1, %r0, 16, %rd0; st.global.v4.u32 [%rd1], {{%r1, %r2, %r3, %r4}};"
            );
            let found = run(&body, &[[0u32; 4]; 32], 1, 32, Mode::Checked).unwrap();
            for lane in 0..32 {
                for m in 0..count {
                    let word = |row: u32, column: u32| (8 * m as u32 + row) * 8 + column;
                    let (g, t) = (lane as u32 / 4, 2 * (lane as u32 % 4));
                    let pair =
                        if transposed { [word(t, g), word(t + 1, g)] } else { [word(g, t), word(g, t + 1)] };
                    assert_eq!(
                        found[lane][m],
                        pair[0] | pair[1] << 16,
                        "x{count}{suffix}, matrix {m}, lane {lane}"
                    );
                }
            }
        }
    }
}

//! Every fault of a kernel is found, and the same kernel without its mistake runs.

use sluice_ptx::{Access, Fault, FaultKind, Mode, Space};

use crate::support::run;

/// Runs `body` in checked mode over 256 words.
fn checked(body: &str, grid: u32, block: u32) -> Result<Vec<u32>, Fault> {
    run(body, &[7u32; 256], grid, block, Mode::Checked)
}

/// The fault of `bad`; `good` must have none.
fn only_fault_of(bad: &str, good: &str, grid: u32, block: u32) -> Fault {
    checked(good, grid, block).unwrap();
    checked(bad, grid, block).unwrap_err()
}

#[test]
fn an_access_past_the_end_is_found_with_line_and_thread() {
    let body = |offset: u32| format!("mad.wide.u32 %rd1, %r0, 4, %rd0;\nst.global.u32 [%rd1+{offset}], %r0;");
    for mode in [Mode::Fast, Mode::Checked] {
        run(&body(960), &[0u32; 256], 1, 16, mode).unwrap();
        let fault = run(&body(964), &[0u32; 256], 1, 16, mode).unwrap_err();
        let FaultKind::OutOfBounds { space: Space::Global, bytes: 4, .. } = fault.kind else {
            panic!("{fault}")
        };
        assert_eq!((fault.place.line, fault.place.thread), (16, Some([15, 0, 0])));
        assert_eq!(fault.place.text, "st.global.u32 [%rd1+964], %r0;");
        assert_eq!(fault.place.kernel, "k");
    }
}

#[test]
fn every_space_has_bounds() {
    let cases = [
        ("ld.shared.u32 %r1, [s+1024];", Space::Shared),
        ("ld.param.u32 %r1, [p+8];", Space::Param),
        (".local .align 4 .b8 d[8]; mov.u64 %rd1, d; st.local.u32 [%rd1+16], %r0;", Space::Local),
        (
            "mov.u32 %r1, s; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1; ld.u32 %r1, [%rd1+1024];",
            Space::Shared,
        ),
    ];
    for (body, expected) in cases {
        let fault = run(body, &[0u32], 1, 1, Mode::Fast).unwrap_err();
        let FaultKind::OutOfBounds { space, .. } = fault.kind else { panic!("{fault}") };
        assert_eq!(space, expected);
    }
}

#[test]
fn an_unaligned_access_is_found() {
    for mode in [Mode::Fast, Mode::Checked] {
        run("ld.global.v2.u32 {%r1, %r2}, [%rd0+8];", &[0u32; 8], 1, 1, mode).unwrap();
        let fault = run("ld.global.v2.u32 {%r1, %r2}, [%rd0+4];", &[0u32; 8], 1, 1, mode).unwrap_err();
        assert!(
            matches!(fault.kind, FaultKind::Misaligned { space: Space::Global, bytes: 8, .. }),
            "{fault}"
        );
    }
}

#[test]
fn shared_memory_that_was_never_written_is_found() {
    let fault = only_fault_of(
        "st.shared.u32 [s], %r0; ld.shared.u32 %r1, [s+4];",
        "st.shared.u32 [s+4], %r0; ld.shared.u32 %r1, [s+4];",
        1,
        1,
    );
    assert_eq!(fault.kind, FaultKind::Uninitialised { space: Space::Shared, address: 4, bytes: 4 });
}

#[test]
fn local_and_global_memory_that_was_never_written_is_found() {
    let local = |offset: u32| {
        format!(
            ".local .align 4 .b8 d[8]; mov.u64 %rd1, d; st.local.u32 [%rd1], %r0; ld.local.u32 %r1, [%rd1+{offset}];"
        )
    };
    let fault = only_fault_of(&local(4), &local(0), 1, 40);
    assert!(matches!(fault.kind, FaultKind::Uninitialised { space: Space::Local, .. }), "{fault}");
    let module = crate::support::module("ld.global.u32 %r1, [%rd0+4];");
    let mut arena = sluice_ptx::Arena::new();
    let address = arena.alloc(8);
    arena.write(address, &[1u32]);
    let params = address.to_le_bytes();
    let what = sluice_ptx::Launch { grid: [1; 3], block: [1; 3], dynamic_shared_bytes: 0, params: &params };
    let options = sluice_ptx::Options { mode: Mode::Checked, ..Default::default() };
    let kernel = module.kernel("k").unwrap();
    let fault = sluice_ptx::launch(kernel, &what, &arena, &options).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Uninitialised { space: Space::Global, bytes: 4, .. }), "{fault}");
    arena.write(address, &[1u32, 2]);
    sluice_ptx::launch(kernel, &what, &arena, &options).unwrap();
}

/// Writes a word of shared memory, `between`, and reads the word of the thread whose number has `bit` changed.
fn exchange(between: &str, bit: u32) -> String {
    format!(
        "shl.b32 %r1, %r0, 2; mov.u32 %r2, s; add.u32 %r3, %r2, %r1; st.shared.u32 [%r3], %r0; {between}
        xor.b32 %r4, %r0, {bit}; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];"
    )
}

#[test]
fn a_race_between_warps_is_found_unless_a_barrier_is_between() {
    // Both warps must have written before one reads, or the read is of nothing.
    let bad = format!(
        "shl.b32 %r1, %r0, 2; mov.u32 %r2, s; add.u32 %r3, %r2, %r1; st.shared.u32 [%r3], 0; bar.sync 0; {}",
        exchange("", 32)
    );
    let fault = only_fault_of(&bad, &exchange("bar.sync 0;", 32), 1, 64);
    let FaultKind::Race { space: Space::Shared, other_thread, .. } = fault.kind else { panic!("{fault}") };
    assert!(other_thread.is_some());
}

#[test]
fn a_race_between_lanes_is_found_unless_a_warp_barrier_is_between() {
    let fault = only_fault_of(&exchange("", 1), &exchange("bar.warp.sync 0xffffffff;", 1), 1, 32);
    let expected = FaultKind::Race {
        space: Space::Shared,
        address: 4,
        access: Access::Read,
        other: Access::Write,
        other_thread: Some(1),
        other_block: 0,
    };
    assert_eq!((fault.kind, fault.place.thread), (expected, Some([0, 0, 0])));
}

#[test]
fn a_warp_barrier_orders_the_lanes_that_it_names_and_no_others() {
    // Lanes 0 to 15 and 16 to 31 each pass a barrier of their own.
    let halves = "setp.lt.u32 %p1, %r0, 16; @%p1 bar.warp.sync 0xffff; @!%p1 bar.warp.sync 0xffff0000;";
    let fault = only_fault_of(&exchange(halves, 16), &exchange(halves, 8), 1, 32);
    assert!(matches!(fault.kind, FaultKind::Race { space: Space::Shared, .. }), "{fault}");
}

#[test]
fn a_write_after_reads_of_several_warps_needs_a_barrier() {
    let body = |between: &str| {
        format!(
            "setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 5; bar.sync 0; ld.shared.u32 %r1, [s]; {between}
            @%p1 st.shared.u32 [s], 6;"
        )
    };
    let fault = only_fault_of(&body(""), &body("bar.sync 0;"), 1, 96);
    let FaultKind::Race { access: Access::Write, other: Access::Read, other_thread: None, .. } = fault.kind
    else {
        panic!("{fault}")
    };
}

#[test]
fn a_race_between_blocks_is_found_unless_each_has_its_own_word() {
    let fault = only_fault_of(
        "st.global.u32 [%rd0], %r0;",
        "mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd1, %r1, 4, %rd0; st.global.u32 [%rd1], %r0;",
        4,
        1,
    );
    let FaultKind::Race { space: Space::Global, other_block: 0, .. } = fault.kind else { panic!("{fault}") };
    assert_eq!(fault.place.block, [1, 0, 0]);
    let sums = checked("red.global.add.u32 [%rd0], 1;", 4, 64).unwrap();
    assert_eq!(sums[0], 7 + 4 * 64);
}

#[test]
fn the_last_block_reads_what_others_wrote_if_they_executed_a_fence() {
    // Each block writes its word and counts itself; the last one adds up all words.
    let body = |fence: &str| {
        format!(
            "mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd1, %r1, 4, %rd0; st.global.u32 [%rd1+16], 3; {fence}
            atom.global.add.u32 %r2, [%rd0], 1; setp.ne.u32 %p1, %r2, 9; @%p1 ret; membar.gl;
            ld.global.u32 %r3, [%rd0+16]; ld.global.u32 %r4, [%rd0+20]; ld.global.u32 %r5, [%rd0+24];
            add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5; st.global.u32 [%rd0+4], %r3;"
        )
    };
    let fault = only_fault_of(&body(""), &body("membar.gl;"), 3, 1);
    assert!(
        matches!(fault.kind, FaultKind::Race { space: Space::Global, access: Access::Read, .. }),
        "{fault}"
    );
    assert_eq!(checked(&body("membar.gl;"), 3, 1).unwrap()[1], 9);
}

/// A copy to shared memory, then a read by the thread whose number has `bit` changed.
fn copy(wait: &str, bit: u32) -> String {
    format!(
        "shl.b32 %r1, %r0, 4; mov.u32 %r2, s; add.u32 %r3, %r2, %r1; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd1, %rd0;
        cp.async.cg.shared.global [%r3], [%rd1], 16; cp.async.commit_group; {wait}
        xor.b32 %r4, %r1, {bit}; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];
        mad.wide.u32 %rd2, %r0, 4, %rd0; bar.sync 0;"
    )
}

#[test]
fn a_copy_is_read_after_its_wait_and_by_others_after_a_barrier() {
    let good = copy("cp.async.wait_group 0; bar.sync 0;", 512);
    let own = copy("cp.async.wait_all;", 0);
    checked(&own, 1, 64).unwrap();
    let fault = only_fault_of(&copy("bar.sync 0;", 512), &good, 1, 64);
    assert_eq!(fault.kind, FaultKind::PendingCopy { address: 512, by_thread: 32 });
    let fault = only_fault_of(&copy("cp.async.wait_group 1;", 0), &own, 1, 64);
    assert_eq!(fault.kind, FaultKind::PendingCopy { address: 0, by_thread: 0 });
    // The second warp has waited for its copy, but nothing says so to the first one.
    let late =
        "bar.sync 0; setp.ge.u32 %p1, %r0, 32; @%p1 cp.async.wait_all; bar.sync 0; @!%p1 cp.async.wait_all;";
    checked(&copy(&format!("{late} bar.sync 0;"), 512), 1, 64).unwrap();
    let fault = checked(&copy(late, 512), 1, 64).unwrap_err();
    let FaultKind::Race { space: Space::Shared, other: Access::Write, .. } = fault.kind else {
        panic!("{fault}")
    };
}

#[test]
fn a_copy_that_takes_more_than_it_copies_is_found() {
    let body = |take: u32| format!("mov.u32 %r1, s; cp.async.ca.shared.global [%r1], [%rd0], 8, {take};");
    let fault = only_fault_of(&body(9), &body(8), 1, 1);
    assert_eq!(fault.kind, FaultKind::CopySize { take: 9, bytes: 8 });
}

#[test]
fn warps_at_different_barriers_are_found() {
    let fault = only_fault_of(
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 0; bra B; A: bar.sync 0; B:",
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; mov.u32 %r1, 0; A: bar.sync 0;",
        1,
        64,
    );
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier { barrier: 0, .. }), "{fault}");
}

#[test]
fn a_barrier_that_some_threads_never_reach_is_found() {
    let early = |first: u32| format!("setp.ge.u32 %p1, %r0, {first}; @%p1 ret; bar.sync 0;");
    for (first, arrived, expected) in [(32, 32, 64), (40, 8, 32)] {
        let fault = only_fault_of(&early(first), &early(64), 1, 64);
        assert_eq!(fault.kind, FaultKind::BarrierNotReached { barrier: 0, arrived, expected });
    }
    // A GPU goes on when the others have ended, and so does fast mode; but nothing ends a wait for a second barrier.
    run(&early(32), &[0u32], 1, 64, Mode::Fast).unwrap();
    let fault = run("bar.sync 1, 96;", &[0u32], 1, 96, Mode::Fast);
    fault.unwrap();
    let fault =
        run("setp.ge.u32 %p1, %r0, 64; @%p1 ret; bar.sync 1, 96;", &[0u32], 1, 96, Mode::Fast).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BarrierNotReached { barrier: 1, arrived: 64, expected: 96 });
}

#[test]
fn a_barrier_has_a_number_below_16_and_counts_whole_warps() {
    let fault = only_fault_of("bar.sync 16;", "bar.sync 15;", 1, 64);
    assert!(matches!(fault.kind, FaultKind::BadBarrier { barrier: 16, .. }), "{fault}");
    let fault = only_fault_of("bar.sync 1, 33;", "bar.sync 1, 64;", 1, 64);
    assert_eq!(fault.kind, FaultKind::BadBarrier { barrier: 1, count: 33 });
}

#[test]
fn a_lane_that_its_own_mask_does_not_name_is_found() {
    let body = |mask: &str| format!("shfl.sync.bfly.b32 %r1, %r0, 1, 0x1f, {mask};");
    let fault = only_fault_of(&body("0x7fffffff"), &body("0xffffffff"), 1, 32);
    assert_eq!(fault.kind, FaultKind::NotInOwnMask { mask: 0x7fff_ffff });
    assert_eq!(fault.place.thread, Some([31, 0, 0]));
}

#[test]
fn a_shuffle_from_a_lane_that_takes_no_part_is_found() {
    let body = |lane: u32| {
        format!("setp.lt.u32 %p1, %r0, 16; @%p1 shfl.sync.idx.b32 %r1, %r0, {lane}, 0x1f, 0xffff;")
    };
    let fault = only_fault_of(&body(16), &body(15), 1, 32);
    assert_eq!(fault.kind, FaultKind::AbsentLane { lane: 16 });
}

#[test]
fn lanes_that_wait_for_each_other_are_found() {
    let body = |low: &str, high: &str| {
        format!("setp.lt.u32 %p1, %r0, 16; @%p1 bra A; bar.warp.sync {high}; ret; A: bar.warp.sync {low};")
    };
    let fault = only_fault_of(&body("0xffffffff", "0xffffffff"), &body("0x0000ffff", "0xffff0000"), 1, 32);
    let FaultKind::DivergentWarp { places } = &fault.kind else { panic!("{fault}") };
    assert_eq!(places.iter().map(|place| place.1).collect::<Vec<_>>(), [0xffff, 0xffff_0000]);
    // Lanes that have ended are waited for no more.
    checked(&body("0xffffffff", "0xffff0000"), 1, 32).unwrap();
}

#[test]
fn a_trap_and_an_index_beyond_its_table_are_found() {
    let fault =
        only_fault_of("setp.eq.u32 %p1, %r0, 3; @%p1 trap;", "setp.eq.u32 %p1, %r0, 9; @%p1 trap;", 1, 8);
    assert_eq!((fault.kind, fault.place.thread), (FaultKind::Trap, Some([3, 0, 0])));
    let body = |threads: u32| {
        format!("T: .branchtargets A, B; min.u32 %r1, %r0, {threads}; brx.idx %r1, T; A: B: mov.u32 %r2, 0;")
    };
    let fault = only_fault_of(&body(2), &body(1), 1, 8);
    assert_eq!(fault.kind, FaultKind::BranchIndex { index: 2 });
}

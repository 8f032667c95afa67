//! What a launch refuses, how it ends, and that results depend neither on workers nor on the order of warps.

use std::sync::atomic::{AtomicU32, Ordering};

use sluice_ptx::{Arena, Extent, Fault, FaultKind, GlobalMemory, Launch, Mode, Module, Options, launch};

use crate::support::{module, text};

fn kind(module: &Module, change: impl Fn(&mut Launch)) -> Result<(), FaultKind> {
    let params = Arena::new().alloc_with(&[0u32]).to_le_bytes();
    let mut what = Launch { grid: [1; 3], block: [1; 3], dynamic_shared_bytes: 0, params: &params };
    change(&mut what);
    let memory = Arena::new();
    let result = launch(module.kernel("k").unwrap(), &what, &memory, &Options::default());
    result.map(|_| ()).map_err(|fault: Fault| fault.kind)
}

#[test]
fn parameters_of_another_size_are_refused() {
    let module = module("");
    assert_eq!(kind(&module, |_| {}), Ok(()));
    let wrong = kind(&module, |what| what.params = &[0; 4]);
    assert_eq!(wrong, Err(FaultKind::ParameterBytes { expected: 8, given: 4 }));
}

#[test]
fn a_block_larger_than_the_kernel_or_the_device_allows_is_refused() {
    let small = Module::parse(&text("").replace("(.param .u64 p)\n", "(.param .u64 p)\n.maxntid 64, 2, 1\n"))
        .unwrap();
    assert_eq!(small.kernel("k").unwrap().max_threads(), Some(128));
    assert_eq!(kind(&small, |what| what.block = [128, 1, 1]), Ok(()));
    let refused = kind(&small, |what| what.block = [129, 1, 1]);
    assert_eq!(refused, Err(FaultKind::BlockSize { threads: 129, limit: 128 }));
    let module = module("");
    assert_eq!(kind(&module, |what| what.block = [32, 32, 1]), Ok(()));
    for block in [[1025, 1, 1], [0, 1, 1], [1, 1, 65], [u32::MAX; 3]] {
        assert!(matches!(kind(&module, |what| what.block = block), Err(FaultKind::BlockSize { .. })));
    }
    for grid in [[0, 1, 1], [1, 65_536, 1], [1, 1, 65_536]] {
        assert_eq!(kind(&module, |what| what.grid = grid), Err(FaultKind::GridSize { grid }));
    }
}

#[test]
fn shared_memory_has_the_limits_of_the_device() {
    let with = |bytes: u32| Module::parse(&text(&format!(".shared .align 4 .b8 t[{bytes}];"))).unwrap();
    assert_eq!(kind(&with((48 << 10) - 1024), |_| {}), Ok(()));
    let refused = kind(&with((48 << 10) - 1020), |_| {});
    assert_eq!(refused, Err(FaultKind::SharedBytes { bytes: (48 << 10) + 4, limit: 48 << 10 }));
    let module = module("");
    assert_eq!(kind(&module, |what| what.dynamic_shared_bytes = 226 << 10), Ok(()));
    let refused = kind(&module, |what| what.dynamic_shared_bytes = (226 << 10) + 1);
    assert_eq!(refused, Err(FaultKind::SharedBytes { bytes: (227 << 10) + 1, limit: 227 << 10 }));
}

/// Memory that asks for the end after some slices.
struct Ends {
    arena: Arena,
    slices: AtomicU32,
}

// SAFETY: extents are those of the arena.
unsafe impl GlobalMemory for Ends {
    fn extent(&self, address: u64) -> Option<Extent> {
        self.arena.extent(address)
    }

    fn slice(&self, run: &mut dyn FnMut()) {
        self.slices.fetch_add(1, Ordering::Relaxed);
        run();
    }

    fn cancelled(&self) -> bool {
        self.slices.load(Ordering::Relaxed) >= 5
    }
}

#[test]
fn a_kernel_that_spins_for_ever_is_ended_when_the_memory_says_so() {
    let module = module("A: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra A;");
    let mut memory = Ends { arena: Arena::new(), slices: AtomicU32::new(0) };
    let params = memory.arena.alloc_with(&[0u32]).to_le_bytes();
    let what = Launch { grid: [1; 3], block: [64, 1, 1], dynamic_shared_bytes: 0, params: &params };
    let fault = launch(module.kernel("k").unwrap(), &what, &memory, &Options::default()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Cancelled);
    assert!((5..9).contains(&memory.slices.into_inner()));
}

#[test]
fn lanes_of_one_warp_may_wait_for_each_other_through_memory() {
    // Lane 0 spins until lane 1 has set a flag: threads of a warp are scheduled independently.
    let body = "setp.ne.u32 %p1, %r0, 0; @%p1 bra B;
        A: ld.volatile.global.u32 %r1, [%rd0]; setp.ne.u32 %p2, %r1, 1; @%p2 bra A; bra C;
        B: st.volatile.global.u32 [%rd0], 1; C:";
    let result = crate::support::run(body, &[0u32], 1, 2, Mode::Checked).unwrap();
    assert_eq!(result, [1]);
}

#[test]
fn results_depend_neither_on_workers_nor_on_the_order_of_warps() {
    // Each block adds up its threads' squares in shared memory.
    let body = "mul.lo.u32 %r1, %r0, %r0; mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 4, %r2; st.shared.u32 [%r3], %r1;
        bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra E; mov.u32 %r4, 0; mov.u32 %r5, 0;
        L: ld.shared.u32 %r6, [%r2]; add.u32 %r4, %r4, %r6; add.u32 %r2, %r2, 4; add.u32 %r5, %r5, 1;
        mov.u32 %r7, %ntid.x; setp.lt.u32 %p2, %r5, %r7; @%p2 bra L;
        mov.u32 %r8, %ctaid.x; mad.wide.u32 %rd1, %r8, 4, %rd0; add.u32 %r4, %r4, %r8; st.global.u32 [%rd1], %r4; E:";
    let module = module(body);
    let squares: u32 = (0..160).map(|n| n * n).sum();
    let expected: Vec<u32> = (0..50).map(|block| squares + block).collect();
    for (workers, warp_order_seed) in [(1, 0), (2, 0), (3, 5), (1, 99), (64, 1)] {
        for mode in [Mode::Fast, Mode::Checked] {
            let mut arena = Arena::new();
            let to = arena.alloc(200);
            let params = to.to_le_bytes();
            let what =
                Launch { grid: [50, 1, 1], block: [160, 1, 1], dynamic_shared_bytes: 0, params: &params };
            let options = Options { mode, workers, warp_order_seed, profile: false };
            launch(module.kernel("k").unwrap(), &what, &arena, &options).unwrap();
            assert_eq!(arena.read::<u32>(to, 50), expected);
        }
    }
}

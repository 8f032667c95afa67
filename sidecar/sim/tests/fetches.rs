//! KV of two layers fetched into one buffer in succession, in virtual time: how long a step waits, and that every error
//! is detected.

use sluice_policy::action::{Fetch, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{Generation, LayerId};
use sluice_ports::compute::StepDone;
use sluice_sim::SimFaults;

use crate::host_tier::{Bench, swap_of};

/// 12,000 bytes at 16 GB/s, after 1 us.
const BLOCK_NS: u64 = 1_000 + 750;

fn fetch(layer: u16, generation: u64, after: Option<(u16, u64)>, host: (u32, u64)) -> Work {
    Work::Fetch(Fetch {
        layer: LayerId(layer),
        buffer: 0,
        generation: Generation(generation),
        after: after.map(|(layer, generation)| (LayerId(layer), Generation(generation))),
        layer_blocks: vec![swap_of((6, host.0, host.1))].into(),
    })
}

/// Runs the step after a KV block that is in the host tier and is fetched into block 6, layer by layer. Returns the
/// step and the number of wrong reads.
fn step(faults: SimFaults) -> (StepDone, u64) {
    let mut bench = Bench::new();
    bench.step(0, (0..16).collect(), &[(0, [0, 1])]);
    let written = bench.run(Work::WriteBack(vec![swap_of((0, 1, 1)), swap_of((1, 0, 2))]));
    assert!(matches!(written, Outcome::Done { .. }), "{written:?}");
    bench.set_faults(faults);
    bench.submit(fetch(0, 5, None, (1, 1)));
    bench.submit(fetch(1, 6, Some((0, 5)), (0, 2)));
    let named = vec![(LayerId(0), Generation(5)), (LayerId(1), Generation(6))];
    let done = bench.step_of(16, vec![7], &[(0, [6, 6]), (1, [7, 8])], named);
    (done, bench.compute.wrong_reads())
}

/// Returns the same token with the earlier KV on the device.
fn expected() -> u32 {
    let mut bench = Bench::new();
    bench.step(0, (0..16).collect(), &[(0, [0, 1])]);
    bench.step(16, vec![7], &[(1, [7, 8])])
}

#[test]
fn layers_that_share_a_buffer_read_their_own_and_wait_for_it() {
    let (done, wrong_reads) = step(SimFaults::default());
    assert_eq!((done.sampled[0].token, wrong_reads), (expected(), 0));
    assert_eq!(done.kv_stall_ns, [BLOCK_NS; 2], "the second begins when the first layer is through");
    assert_eq!(done.stall_ns, [0; 2], "weights were not mentioned");
    assert_eq!(done.total_ns, done.layer_ns.iter().sum::<u64>() + 2 * BLOCK_NS);
}

#[test]
fn every_planted_kv_fetch_bug_is_detected() {
    let planted = [
        SimFaults { ignore_after: true, ..SimFaults::default() },
        SimFaults { publish_early: true, ..SimFaults::default() },
        SimFaults { swap_in_wrong_layer_block: true, ..SimFaults::default() },
    ];
    for faults in planted {
        let (done, wrong_reads) = step(faults);
        assert!(done.sampled[0].token != expected() || wrong_reads > 0, "{faults:?}");
    }
}

#[test]
fn async_kv_copies_take_link_time_and_fail_like_swaps() {
    let mut bench = Bench::new();
    let begun = bench.now;
    let taken = Outcome::Done { bytes: 12_000, duration_ns: BLOCK_NS };
    assert_eq!(bench.run(Work::WriteBack(vec![swap_of((0, 1, 1))])), taken);
    assert_eq!(bench.run(fetch(0, 5, None, (1, 1))), taken);
    assert_eq!(bench.now.since(begun), 2 * BLOCK_NS);
    bench.set_faults(SimFaults { copy_fails_permille: 1000, ..SimFaults::default() });
    let failed = Outcome::Failed(Failure::CopyFailed);
    assert_eq!(bench.run(fetch(0, 6, None, (1, 1))), failed);
    assert_eq!(bench.run(Work::WriteBack(vec![swap_of((0, 1, 2))])), failed);
    bench.set_faults(SimFaults::default());
    for name in [1, 2] {
        let refused = bench.run(fetch(0, 7, None, (1, name)));
        assert_eq!(refused, Outcome::Failed(Failure::Refused), "{name}: a failed write-back leaves no name");
    }
}

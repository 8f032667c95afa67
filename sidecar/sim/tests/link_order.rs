//! The order of copies on the link, with times computed manually: a step fetches KV while KV without a deadline is
//! restored.

use sluice_policy::action::{Fetch, Work};
use sluice_policy::copy_priority::BACKGROUND_DEADLINE_NS;
use sluice_policy::ids::{ActionId, Generation, LayerId, Nanos};
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;

use crate::host_tier::{Bench, swap_of};
use crate::plan_admission::{LAYERS, burst, short};
use crate::support::{assert_same, expected, run};

/// Time of a block on the link: 100 us.
const BLOCK_NS: u64 = 100_000;
/// Compute time of a layer: one fifth more.
const LAYER_NS: u64 = 120_000;

/// Fetches a layer's first block into the layer's own buffer.
fn fetch(layer: u16, host: u32) -> Work {
    Work::Fetch(Fetch {
        layer: LayerId(layer),
        buffer: layer as u8,
        generation: Generation(9),
        after: None,
        layer_blocks: vec![swap_of((5 + u32::from(layer), host, u64::from(host) + 1))].into(),
    })
}

/// Puts a KV block of both layers into host blocks 0 and 1, and KV of another request into block 2.
fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.step(0, (0..16).collect(), &[(0, [0, 1])]);
    bench.run(Work::WriteBack(vec![swap_of((0, 0, 1)), swap_of((1, 1, 2)), swap_of((2, 2, 3))]));
    bench.set_pace(BLOCK_NS, LAYER_NS);
    bench
}

/// Returns how long each layer of a step waits for its KV, with a copy of KV that is not needed between the two
/// fetches.
fn kv_stalls(by_deadline: bool) -> Vec<u64> {
    let mut bench = bench();
    let due = |layer: u64| Some(bench.now.plus(layer * LAYER_NS)).filter(|_| by_deadline);
    let dues = [due(0), due(1)];
    bench.submit_with_deadline(dues[0], fetch(0, 0));
    bench.submit(Work::SwapIn(vec![swap_of((2, 2, 3))]));
    bench.submit_with_deadline(dues[1], fetch(1, 1));
    let named = vec![(LayerId(0), Generation(9)), (LayerId(1), Generation(9))];
    let done = bench.step_of(16, vec![7], &[(0, [5, 6]), (1, [8, 9])], named);
    assert_eq!(bench.compute.wrong_reads(), 0);
    done.kv_stall_ns
}

#[test]
fn kv_restore_is_ordered_after_copies_the_step_reads() {
    // The second layer starts at 220 us. Its KV is copied from 100 to 200, or, behind the other copy, from 200 to 300.
    assert_eq!(kv_stalls(true), [BLOCK_NS, 0]);
    assert_eq!(kv_stalls(false), [BLOCK_NS, 80_000], "in order of arrival the step stalls");
}

#[test]
fn unneeded_kv_is_restored_eventually_on_busy_link() {
    let mut bench = bench();
    // A copy takes 750 us, and a more urgent copy is always waiting.
    bench.set_pace(750_000, LAYER_NS);
    let begun = bench.now;
    let first = bench.submit_with_deadline(Some(begun), fetch(0, 0));
    let home = bench.submit(Work::SwapIn(vec![swap_of((2, 2, 3))]));
    let needed = |copy: u64| Some(begun.plus(copy * 750_000));
    let later: Vec<_> = (1..20).map(|copy| bench.submit_with_deadline(needed(copy), fetch(0, 0))).collect();
    let ends: Vec<(ActionId, Nanos)> = (0..21).map(|_| bench.next_completion()).collect();
    // The last copy with an earlier deadline is the sixth after the first, at 4.5 ms; the restore has the link from
    // 5.25 to 6 ms.
    assert_eq!(BACKGROUND_DEADLINE_NS, 5_000_000);
    let (_, ended) = ends[7];
    assert_eq!((ends[7].0, ended.since(begun)), (home, 6_000_000));
    let order: Vec<_> = [first].into_iter().chain(later).collect();
    let others: Vec<_> = ends.iter().map(|(id, _)| *id).filter(|id| *id != home).collect();
    assert_eq!(others, order);
}

#[test]
fn write_back_is_ordered_after_awaited_copy_to_host() {
    for (due, first) in [(Some(Nanos(0)), 1), (None, 0)] {
        let mut bench = bench();
        let writes = |host, name| Work::WriteBack(vec![swap_of((host, host, name))]);
        bench.submit(writes(3, 7));
        let ids = [
            bench.submit(writes(0, 8)),
            bench.submit_with_deadline(due, Work::SwapOut(vec![swap_of((1, 1, 9))])),
        ];
        bench.next_completion();
        assert_eq!(bench.next_completion().0, ids[first], "{due:?}");
        assert_eq!(bench.next_completion().0, ids[1 - first], "{due:?}");
    }
}

/// Returns the time at which a burst has ended over a link with a sixteenth of the usual bandwidth, and checks its
/// tokens against a run with enough memory.
fn ended(policy: PolicyName, seed: u64, link_by_deadline: bool) -> Nanos {
    let (mut setup, load) = (short(), burst(seed));
    setup.params = Params { policy, link_by_deadline, ..setup.params };
    setup.profile.link_bytes_per_second /= 16;
    setup.profile.out_bytes_per_second /= 16;
    let world = run(setup, &load, |_, _| ());
    assert_same(&world, &expected(&load, LAYERS), &format!("{policy:?} {seed} {link_by_deadline}"));
    world.now()
}

#[test]
fn link_order_changes_no_token() {
    for seed in 0..3 {
        let [by_deadline, as_ordered] = [true, false].map(|order| ended(PolicyName::Unified, seed, order));
        assert_ne!(by_deadline, as_ordered, "seed {seed}: no copy went before another");
    }
    for policy in [PolicyName::OrbitFlow, PolicyName::Ellm] {
        for order in [true, false] {
            ended(policy, 0, order);
        }
    }
}

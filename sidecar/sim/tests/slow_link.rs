//! The step model's decision: own layers are remapped if their copies are hidden, and not if they would stall.

use sluice_common::random::Rng;
use sluice_common::statistics::percentile;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::Request;
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, VOCAB, assert_same, expected, load, request, setup};

/// With 48 layers, two of which share a slot and are 24 apart, a copy is hidden up to r = 23. Both tested values of r
/// are a factor of three from it.
const LAYERS: u16 = 48;

/// Returns a setup in which a layer's copy takes `r` times the layer's compute for one token.
fn over_link(r_permille: u64) -> Setup {
    let mut setup = setup(PolicyName::Oneiros, LAYERS, 14, 1);
    let compute_ns = setup.profile.layer_ns + setup.profile.layer_token_ns;
    let transfer_ns = u128::from(compute_ns * r_permille / 1000);
    let slab_bytes = u128::from(setup.geometry.slab_bytes[0]);
    setup.profile.copy_start_ns = 0;
    setup.profile.link_bytes_per_second = u64::try_from(slab_bytes * 1_000_000_000 / transfer_ns).unwrap();
    setup
}

/// Runs a load over such a link.
fn run(r_permille: u64) -> Simulation {
    let load = load(16, 5);
    let mut world = Simulation::new(over_link(r_permille), None).unwrap();
    for (at, request) in &load {
        world.run_until(Nanos(*at));
        world.submit(request.clone());
    }
    assert!(world.run_until_idle(LIMIT), "every request ends");
    assert_same(&world, &expected(&load, LAYERS), &format!("r {r_permille} permille"));
    world
}

/// Returns the number of remappings, and of those declined because their copies would stall.
fn decisions(world: &Simulation) -> (u64, u64) {
    let manager = world.driver.scheduler().manager();
    (manager.figures().counted(Reason::RemapOwn), manager.figures().counted(Reason::DeclinedStall))
}

#[test]
fn own_layers_are_remapped_at_r_7_5_and_not_at_r_70() {
    let (remapped, _) = decisions(&run(7_500));
    assert!(remapped > 0, "the copies are hidden");
    let slow = run(70_000);
    let (remapped, declined) = decisions(&slow);
    assert_eq!(remapped, 0, "the copies would stall");
    assert!(declined > 0, "and it says so");
    assert!(slow.outcomes.values().any(|o| o.preemptions > 0), "then requests are recomputed");
}

/// Returns the times between tokens of two requests that need the memory of layers once they are long, and of two more
/// after these have ended. At `change` the link drops to `permille` of its bandwidth.
fn gaps(change: Nanos, permille: u64) -> [Vec<u64>; 2] {
    let mut setup = over_link(6_000);
    setup.geometry.capacity_chunks += setup.geometry.kv_chunks_for(3);
    let mut world = Simulation::new(setup, None).unwrap();
    let slow = permille * world.device.borrow().profile.link_bytes_per_second / 1000;
    [[1, 2], [3, 4]].map(|pair| {
        pair.into_iter().for_each(|id| world.submit(long_request(id)));
        let (mut times, mut more) = ([Vec::new(), Vec::new()], true);
        while more {
            let now = world.now();
            if now >= change {
                world.device.borrow_mut().profile.link_bytes_per_second = slow;
            }
            more = world.tick(LIMIT);
            for (times, id) in times.iter_mut().zip(pair) {
                times.resize(world.outcomes[&RequestId(id)].tokens.len(), now.0);
            }
        }
        times.iter().flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0])).collect()
    })
}

fn long_request(id: u64) -> Request {
    let mut rng = Rng::new(id);
    let prompt = (0..40).map(|_| rng.below(u64::from(VOCAB)) as u32).collect();
    Request { prompt, max_tokens: 110, priority: 0, ..request(id, &mut rng) }
}

fn median(gaps: &[u64]) -> u64 {
    percentile(&mut gaps.to_vec(), 500).unwrap()
}

#[test]
fn a_link_that_halves_in_the_middle_makes_tokens_late_by_a_step_at_most_and_then_none() {
    let (middle, start) = (Nanos(500_000_000), Nanos(0));
    let [whole, _] = gaps(LIMIT, 1000);
    let [met, after] = gaps(middle, 500);
    let [_, expected] = gaps(start, 500);
    let usual = median(&whole);
    let longer_than =
        |permille: u64, gaps: &[u64]| gaps.iter().filter(|gap| **gap > usual * permille / 1000).count();
    let late = |gaps: &[u64]| longer_than(1050, gaps);
    assert!(late(&met) > late(&whole) + 10, "layers move when it halves: {} {}", late(&met), late(&whole));
    // Copies that were hidden behind one step take at most two. When layers are first remapped, tokens wait with any
    // link.
    assert_eq!(longer_than(2000, &met), longer_than(2000, &whole));
    assert_eq!(
        late(&after),
        late(&expected),
        "a request that comes then is served as if it had never been faster"
    );
    assert_eq!(median(&after), usual, "and hides what it moves");
    let [quartered, _] = gaps(middle, 250);
    assert!(longer_than(2000, &quartered) > longer_than(2000, &met), "a fourth is not hidden by two steps");
}

//! The step model's decision: own layers are remapped where copies hide, and not where they would stall.

use sluice_policy::ids::Nanos;
use sluice_policy::params::PolicyName;
use sluice_policy::reason::Reason;
use sluice_sim::World;

use crate::support::{LIMIT, assert_same, expected, load, setup};

/// With 48 layers, two of which share a slot 24 apart, a copy is hidden up to r = 23: three times away from either r.
const LAYERS: u16 = 48;

/// A run over a link on which a layer's copy takes `r` times the compute of that layer for one token.
fn run(r_permille: u64) -> World {
    let mut setup = setup(PolicyName::Oneiros, LAYERS, 14, 1);
    let compute_ns = setup.profile.layer_ns + setup.profile.layer_token_ns;
    let transfer_ns = u128::from(compute_ns * r_permille / 1000);
    let slab_bytes = u128::from(setup.geometry.slab_bytes[0]);
    setup.profile.copy_start_ns = 0;
    setup.profile.link_bytes_per_second = u64::try_from(slab_bytes * 1_000_000_000 / transfer_ns).unwrap();
    let load = load(16, 5);
    let mut world = World::new(setup, None).unwrap();
    for (at, request) in &load {
        world.run_until(Nanos(*at));
        world.submit(request.clone());
    }
    assert!(world.run_until_idle(LIMIT), "every request ends");
    assert_same(&world, &expected(&load, LAYERS), &format!("r {r_permille} permille"));
    world
}

/// Remappings, and those declined because their copies would stall.
fn decisions(world: &World) -> (u64, u64) {
    let brain = world.driver.core().brain();
    (brain.counted(Reason::RemapOwn), brain.counted(Reason::DeclinedStall))
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

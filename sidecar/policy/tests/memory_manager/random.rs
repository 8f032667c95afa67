//! Random loads under every policy and under fixed layouts: every token's KV and every layer's weights are read
//! correctly, and every request ends with the same tokens as alone.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_common::random::{Rng, mix};
use sluice_policy::ids::RequestId;
use sluice_policy::params::ForcedRemap;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{guaranteed_chunks, tenant};
use super::device::Faults;
use super::world::World;

pub const MODEL_TOKENS: u32 = 96;

/// Returns a policy that trades. Small seeds, which single cases use, select Oneiros.
pub fn trading(seed: u64) -> PolicyName {
    if seed >> 8 & 1 == 0 { PolicyName::Oneiros } else { PolicyName::Unified }
}

/// Submits requests over few tokens and salts, so that prefixes are shared.
pub fn load(world: &mut World, rng: &mut Rng, requests: u64) -> BTreeMap<RequestId, Vec<u32>> {
    let mut expected = BTreeMap::new();
    for id in 0..requests {
        let salt = rng.below(2);
        let shared = (rng.below(3) * 16) as usize;
        let own = 1 + rng.below(20) as usize;
        let mut tokens: Vec<u32> = (0..shared as u32).collect();
        tokens.extend((0..own).map(|_| rng.below(50) as u32));
        let more = 1 + rng.below(u64::from(MODEL_TOKENS) - tokens.len() as u64 - 1) as usize;
        world.submit(id, salt, tokens.clone(), more);
        let limit = tokens.len() + more;
        while tokens.len() < limit {
            let next = tokens.iter().fold(salt, |h, t| mix(h ^ u64::from(*t)));
            tokens.push((next % 50) as u32);
        }
        expected.insert(RequestId(id), tokens);
    }
    expected
}

#[derive(Clone, Debug)]
struct Case {
    policy: PolicyName,
    slabs: Vec<u64>,
    forced: Option<(u16, u8)>,
    extra_kv: u32,
    seed: u64,
    kill_permille: u32,
    faults: u32,
    caching: bool,
    slow_link: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let policy = prop_oneof![Just(PolicyName::Recompute), Just(PolicyName::Oneiros), Just(PolicyName::Ellm)];
    let slabs = prop_oneof![(2usize..8).prop_map(|n| vec![4; n]), proptest::collection::vec(1u64..6, 3..8),];
    let forced = proptest::option::of((1u16..6, 1u8..=2));
    let rates = (0u32..20, 0u32..60, any::<bool>(), any::<bool>());
    (policy, slabs, forced, 0u32..30, any::<u64>(), rates).prop_map(
        |(policy, slabs, forced, extra_kv, seed, rates)| {
            let (kill_permille, faults, caching, slow_link) = rates;
            let forced =
                forced.filter(|(alpha, beta)| usize::from(*alpha) + usize::from(*beta) < slabs.len());
            Case { policy, slabs, forced, extra_kv, seed, kill_permille, faults, caching, slow_link }
        },
    )
}

fn world(case: &Case) -> World {
    let (mut params, _) = tenant(case.policy, &case.slabs, 0, MODEL_TOKENS);
    params.forced = case.forced.map(|(alpha, beta)| ForcedRemap { alpha, beta });
    params.prefix_caching = case.caching;
    if case.slow_link {
        params.link_bytes_per_second = 1 << 10;
    }
    let kv = guaranteed_chunks(&params) + case.extra_kv;
    let (_, geometry) = tenant(case.policy, &case.slabs, kv, MODEL_TOKENS);
    let faults = Faults { permille: case.faults, left: 6, ..Faults::default() };
    World::new(params, geometry, case.seed, faults)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_memory_events_change_no_token(case in case()) {
        let mut world = world(&case);
        prop_assert!(world.load(), "a few failures do not keep a tenant from loading");
        world.kill_permille = case.kill_permille;
        let expected = load(&mut world, &mut Rng::new(case.seed ^ 1), 8);
        world.run();
        prop_assert_eq!(&world.finished, &expected);
        world.run_idle(3000);
        prop_assert!(world.manager.is_idle(), "without load everything borrowed comes back");
        prop_assert_eq!(world.manager.figures().kv_counts().used_kv_blocks, 0);
        if case.forced.is_none() {
            prop_assert_eq!(world.manager.figures().layout().alpha(), 0);
        }
    }

    #[test]
    fn equal_histories_have_equal_digests(case in case()) {
        let run = |case: &Case| {
            let mut world = world(case);
            // Too many consecutive failures end the load permanently, which is also a valid history.
            if world.load() {
                load(&mut world, &mut Rng::new(case.seed ^ 1), 4);
                world.run();
            }
            (world.manager.digest(), world.steps)
        };
        prop_assert_eq!(run(&case), run(&case));
        let other = Case { seed: case.seed ^ 2, ..case.clone() };
        prop_assert_ne!(run(&case).0, run(&other).0);
    }
}

#[test]
fn each_policy_reclaims_by_its_own_method() {
    for policy in [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::Ellm] {
        let (params, _) = tenant(policy, &[4; 8], 0, MODEL_TOKENS);
        let (_, geometry) = tenant(policy, &[4; 8], guaranteed_chunks(&params) + 2, MODEL_TOKENS);
        let mut world = World::new(params, geometry, 5, Faults::default());
        assert!(world.load());
        for id in 0..6 {
            world.submit(id, id, (0..40).collect(), 50);
        }
        world.run();
        let used = |reason| world.manager.figures().counted(reason) > 0;
        assert_eq!(used(Reason::RemapOwn), policy == PolicyName::Oneiros, "{policy:?} remaps");
        assert_eq!(used(Reason::Inflate), policy == PolicyName::Ellm, "{policy:?} inflates");
        assert_eq!(world.most_alpha > 0, policy == PolicyName::Oneiros);
        if policy != PolicyName::Oneiros {
            assert!(world.preemptions > 0, "{policy:?} has nothing else in the end");
        }
    }
}

#[test]
fn a_slow_link_makes_oneiros_decline() {
    let (params, _) = tenant(PolicyName::Oneiros, &[4; 8], 0, MODEL_TOKENS);
    let (mut params, geometry) = {
        let kv = guaranteed_chunks(&params) + 2;
        tenant(PolicyName::Oneiros, &[4; 8], kv, MODEL_TOKENS)
    };
    params.link_bytes_per_second = 1 << 60;
    let mut world = World::new(params, geometry, 5, Faults::default());
    // The measured value while the slabs load: 70 times a layer's compute, regardless of the estimate.
    world.device.fill_ns_per_byte = 70 * 1_000_000 / (4 * 64 - 3);
    assert!(world.load());
    for id in 0..6 {
        world.submit(id, id, (0..40).collect(), 50);
    }
    world.run();
    assert_eq!(world.most_alpha, 0, "remapping would stall");
    assert!(world.manager.figures().counted(Reason::DeclinedStall) > 0);
    assert!(world.preemptions > 0);
}

//! Every policy with short memory: tokens equal those of a tenant with enough memory, also when the policy changes
//! under load. Policies that place KV in the host tier do so.

use std::sync::Arc;

use sluice_policy::ids::RequestId;
use sluice_policy::params::Slo;
use sluice_policy::pie::expansion;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::{PlacementRule, PolicyName};
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Event, Request};
use sluice_sim::Simulation;

use crate::support::{LIMIT, setup};

const LAYERS: u16 = 8;
const REQUESTS: u64 = 10;
/// Objectives by which `Unified` admits and pauses requests.
const SLO: Slo = Slo { ttft_ns: 100_000_000, tbt_ns: 20_000_000, allowed_miss_permille: 10 };

fn world(policy: PolicyName, kv_chunks: u32) -> Simulation {
    let mut setup = setup(policy, LAYERS, kv_chunks, 5);
    setup.params.slo = SLO;
    setup.params.host_kv_bytes = 200 * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
    setup.params.expansion = expansion::ExpansionTunables { trial_tokens: 2, ..Default::default() };
    let mut world = Simulation::new(setup, None).unwrap();
    submit_all(&mut world);
    world
}

pub fn submit_all(world: &mut Simulation) {
    for id in 1..=REQUESTS {
        let sampling = Arc::new(Sampling::default());
        let prompt = (0..20 + 5 * id as u32).collect();
        let request = Request {
            id: RequestId(id),
            prompt,
            max_tokens: 60,
            sampling,
            priority: 0,
            salt: id,
            paced: true,
        };
        world.submit(request);
    }
}

pub fn tokens(world: &Simulation) -> Vec<Vec<u32>> {
    world.outcomes.values().map(|outcome| outcome.tokens.clone()).collect()
}

/// Returns the tokens of a run with enough memory.
pub fn ample_memory_tokens() -> Vec<Vec<u32>> {
    let mut world = world(PolicyName::Recompute, 2000);
    assert!(world.run_until_idle(LIMIT), "every request ends");
    assert_eq!(world.driver.scheduler().snapshot().counters.preemptions, 0, "there is room");
    tokens(&world)
}

#[test]
fn every_policy_gives_same_tokens_and_places_kv_as_declared() {
    let expected = ample_memory_tokens();
    for policy in PolicyName::ALL {
        let mut world = world(policy, 60);
        assert!(world.run_until_idle(LIMIT), "every request ends under {policy:?}");
        assert_eq!(tokens(&world), expected, "{policy:?}");
        let core = world.driver.scheduler();
        let places = !matches!(
            core.manager().params().placement_rule(),
            PlacementRule::Device | PlacementRule::Prefills
        );
        assert_eq!(core.manager().figures().counted(Reason::Fetch) > 0, places, "{policy:?} fetches");
        let pauses = core.snapshot().counters.pauses;
        let longest_ns = core.manager().params().longest_pause_ns();
        assert!(longest_ns.is_some() || pauses == 0, "{policy:?} paused {pauses} times");
    }
}

#[test]
fn only_pausing_policies_pause_when_plans_do_not_fit() {
    let expected = ample_memory_tokens();
    for policy in PolicyName::ALL {
        let mut world = world(policy, 24);
        assert!(world.run_until_idle(LIMIT), "every request ends under {policy:?}");
        assert_eq!(tokens(&world), expected, "{policy:?}");
        let core = world.driver.scheduler();
        let (pauses, preemptions) = (core.snapshot().counters.pauses, core.snapshot().counters.preemptions);
        let longest_ns = core.manager().params().longest_pause_ns();
        assert_eq!(pauses > 0, longest_ns.is_some(), "{policy:?} paused {pauses} times");
        assert!(pauses + preemptions > 0, "{policy:?}: a request is one too many");
    }
}

#[test]
fn a_policy_that_changes_under_load_changes_no_token() {
    let expected = ample_memory_tokens();
    let mut world = world(PolicyName::Recompute, 60);
    let mut changes = 0;
    while world.outcomes.len() < REQUESTS as usize || !world.driver.scheduler().is_idle() {
        let steps = world.driver.scheduler().snapshot().counters.steps;
        if steps / 7 > changes {
            changes = steps / 7;
            let policy = PolicyName::ALL[changes as usize % PolicyName::ALL.len()];
            world.driver.push(Event::Policy(policy));
        }
        assert!(world.tick(LIMIT) || world.driver.scheduler().is_idle(), "something goes on");
    }
    assert!(changes >= 7, "every policy has been in force");
    assert_eq!(tokens(&world), expected);
}

#[test]
fn kv_that_cannot_be_fetched_is_computed_again() {
    let mut world = world(PolicyName::FlexGen, 60);
    while world.driver.scheduler().manager().figures().fetched_bytes() == 0 {
        assert!(world.tick(LIMIT), "KV is fetched");
    }
    world.device.borrow_mut().faults.copy_fails_permille = 1000;
    while world.driver.scheduler().manager().figures().counted(Reason::SwapLost) == 0 {
        assert!(world.tick(LIMIT), "fetches are given up");
    }
    world.device.borrow_mut().faults.copy_fails_permille = 0;
    assert!(world.run_until_idle(LIMIT), "every request ends");
    assert_eq!(tokens(&world), ample_memory_tokens());
    assert!(world.driver.scheduler().snapshot().counters.preemptions > 0, "a request was computed again");
}

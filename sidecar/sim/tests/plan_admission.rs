//! Requests that a plan admits with part of their KV offloaded. Without space for its KV, the prompt is computed with
//! its KV in the host tier; then the request continues with the layers that the plan leaves on the device.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_common::random::Rng;
use sluice_policy::ids::RequestId;
use sluice_policy::placement_planner::request::PlanRequest;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Event, Finish, Request};
use sluice_sim::simulation::{RequestResult, Setup};
use sluice_sim::{SimFaults, Simulation};

use crate::support::{LIMIT, assert_same, expected, run, setup};

pub const LAYERS: u16 = 16;

/// Returns a tenant with space for two or three requests on the device, whose plans admit first come, first served.
pub fn short() -> Setup {
    let mut setup = setup(PolicyName::OrbitFlow, LAYERS, 32, 5);
    setup.params.host_kv_bytes = 200 * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
    setup.params.slo.tbt_ns = 1_000_000;
    setup.params.plan_first_come = true;
    setup
}

/// Returns long prompts with their arrival times; memory is never enough for all of them.
pub fn burst(seed: u64) -> Vec<(u64, Request)> {
    let mut rng = Rng::new(seed);
    let mut at = 0;
    let mut next = |id: u64| {
        at += rng.below(20_000_000);
        let prompt: Vec<u32> = (0..rng.between(60, 110)).map(|token| token as u32).collect();
        let (max_tokens, sampling) = (rng.between(10, 50) as u32, Arc::new(Sampling::default()));
        (at, Request { id: RequestId(id), prompt, max_tokens, sampling, priority: 0, salt: id, paced: true })
    };
    (1..=24).map(&mut next).collect()
}

fn counted(world: &Simulation, reason: Reason) -> u64 {
    world.driver.scheduler().manager().figures().counted(reason)
}

fn prompts_offloaded(world: &Simulation) -> u64 {
    world.driver.scheduler().snapshot().counters.prefills_offloaded
}

/// Serves a burst with `each` before every request, and checks that it has the tokens of a run with enough memory.
fn serve(setup: Setup, seed: u64, each: impl FnMut(&mut Simulation, u64)) -> Simulation {
    let load = burst(seed);
    let world = run(setup, &load, each);
    assert_same(&world, &expected(&load, LAYERS), &format!("seed {seed}"));
    world
}

#[test]
fn prefill_offload_and_admission_with_offloaded_kv_change_no_token() {
    let (mut out, mut joined) = (0, 0);
    for seed in 0..6 {
        let mut world = serve(short(), seed, |world, _| world.driver.scheduler().check());
        (out, joined) = (out + prompts_offloaded(&world), joined + counted(&world, Reason::Join));
        let kv = world.driver.scheduler().manager().figures().kv_counts();
        let cache = kv.idle_kv_blocks * u32::from(LAYERS);
        assert_eq!(
            (kv.used_layer_blocks, kv.host_kv_blocks),
            (cache, 0),
            "seed {seed}: everything is given back"
        );
        assert_eq!(world.driver.compute().wrong_reads(), 0, "seed {seed}");
    }
    assert!(out > 10 && joined > 5, "{out} prompts went out, {joined} requests joined");
}

/// Admitted prompts and write-backs of other requests need more host blocks than there are.
#[test]
fn host_tier_smaller_than_admitted_kv_changes_no_token() {
    let mut out = 0;
    for (seed, kv_blocks) in (0..12).zip([8, 14, 24, 20].into_iter().cycle()) {
        let mut setup = short();
        setup.params.host_kv_bytes = kv_blocks * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
        let world = serve(setup, seed, |world, _| world.driver.scheduler().check());
        let ended = |outcome: &RequestResult| matches!(outcome.finish, Some(Finish::Length));
        assert!(world.outcomes.values().all(ended), "seed {seed}, {kv_blocks} places: {:?}", world.outcomes);
        out += prompts_offloaded(&world);
    }
    assert!(out > 3, "{out} prompts went out");
}

#[test]
fn copy_failures_crashes_and_policy_changes_change_no_token() {
    let (mut joined, mut lost, mut replays) = (0, 0, 0);
    for seed in 0..10 {
        let faults = SimFaults { copy_fails_permille: 40, copy_slow_permille: 40, ..SimFaults::default() };
        let world = serve(short(), seed, |world, id| {
            world.device.borrow_mut().faults = faults;
            if id % 5 == seed % 5 {
                world.kill_engine();
            }
            if id % 16 == 7 {
                let policies =
                    [PolicyName::Ellm, PolicyName::OrbitFlow, PolicyName::Pie, PolicyName::Unified];
                world.driver.push(Event::Policy(policies[(id / 16 + seed) as usize % 4]));
            }
            if id % 16 == 11 {
                world.driver.push(Event::Policy(PolicyName::OrbitFlow));
            }
            world.driver.scheduler().check();
        });
        joined += counted(&world, Reason::Join);
        replays += world.driver.scheduler().snapshot().counters.replays;
        lost += counted(&world, Reason::SwapLost);
    }
    assert!(joined > 2 && lost > 0 && replays > 0, "{joined} joined, {lost} lost, {replays} replays");
}

/// Runs a burst of simultaneous requests and calls `look` after each event.
fn run_and_observe(set: impl Fn(&mut Setup), mut look: impl FnMut(&Simulation)) -> Simulation {
    let mut setup = short();
    set(&mut setup);
    let mut world = Simulation::new(setup, None).unwrap();
    burst(3).into_iter().for_each(|(_, request)| world.submit(request));
    while world.tick(LIMIT) {
        look(&world);
    }
    assert!(world.driver.scheduler().is_idle(), "every request ends");
    world
}

/// Returns the largest number of concurrent requests, and the plan requests.
fn most_running(set: impl Fn(&mut Setup)) -> (u32, Vec<PlanRequest>) {
    let mut most = 0;
    let world = run_and_observe(set, |world| most = world.driver.scheduler().snapshot().running.max(most));
    (most, world.plan_requests())
}

#[test]
fn first_come_admits_late_requests_and_plan_admits_none_late() {
    let late = |setup: &mut Setup| setup.params.slo.tbt_ns = 1;
    let (first_come, asked) = most_running(late);
    assert!(asked.iter().flat_map(|asked| &asked.waiting).any(|one| one.must_admit && one.placed));
    let (by_plan, asked) = most_running(|setup| {
        late(setup);
        setup.params.plan_first_come = false;
    });
    assert!(asked.iter().flat_map(|asked| &asked.waiting).all(|one| !one.must_admit));
    assert!(first_come > by_plan, "{first_come} and {by_plan} at once");
}

/// Returns the largest number of different layer sets offloaded at once. Prompts during offload have all layers
/// offloaded and do not count.
fn most_sets(alike: bool) -> usize {
    let mut most = 0;
    run_and_observe(
        |setup| setup.params.plan_alike = alike,
        |world| {
            let placement = world.driver.scheduler().manager().figures().placement();
            let sets = placement.of.values().map(|set| &placement.sets[usize::from(*set)]);
            let sets: BTreeSet<_> = sets.filter(|set| set.len() < usize::from(LAYERS)).collect();
            most = most.max(sets.len());
        },
    );
    most
}

/// OrbitFlow's ablation.
#[test]
fn uniform_plans_use_one_layer_set() {
    assert_eq!(most_sets(true), 1);
    assert!(most_sets(false) > 1, "else each has its own");
}

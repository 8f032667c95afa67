//! A tenant that releases its memory to sleep: the outcome of its requests, and its wake-up for the next one.

use std::sync::Arc;

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::SleepState;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::Memory;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Event, Request, Sleep};
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, setup};

const LAYERS: u16 = 6;
const KEPT_COLUMNS: u64 = 40;

fn tenant(host_kv_blocks: u64) -> Setup {
    let mut setup = setup(PolicyName::Oneiros, LAYERS, 60, 3);
    let kv_block_bytes = u64::from(LAYERS) * setup.geometry.layer_block_bytes;
    setup.params.host_kv_bytes = host_kv_blocks * kv_block_bytes;
    setup
}

fn request(id: u64, prompt: std::ops::Range<u32>, max_tokens: u32) -> Request {
    let sampling = Arc::new(Sampling::default());
    Request {
        id: RequestId(id),
        prompt: prompt.collect(),
        max_tokens,
        sampling,
        priority: 0,
        salt: 0,
        paced: true,
    }
}

fn loaded(host_kv_blocks: u64) -> Simulation {
    let mut world = Simulation::new(tenant(host_kv_blocks), None).unwrap();
    run_until(&mut world, |world| world.driver.scheduler().snapshot().serving);
    world
}

fn run_until(world: &mut Simulation, holds: impl Fn(&Simulation) -> bool) {
    while !holds(world) {
        assert!(world.tick(LIMIT) || holds(world), "nothing more happens");
    }
}

fn run_to_end(world: &mut Simulation) {
    assert!(world.run_until_idle(LIMIT), "every request ends");
}

fn asleep(world: &Simulation) -> bool {
    world.driver.scheduler().manager().status().sleep_state() == SleepState::Asleep
}

fn order_sleep(world: &mut Simulation, order: Sleep) {
    world.driver.push(Event::Sleep(order));
}

/// Returns a tenant with three requests.
fn busy(host_kv_blocks: u64) -> Simulation {
    let mut world = loaded(host_kv_blocks);
    (1..=3).for_each(|id| world.submit(request(id, 0..30 + id as u32, 40)));
    world
}

/// Returns the same tenant after some steps.
fn mid_run(host_kv_blocks: u64) -> Simulation {
    let mut world = busy(host_kv_blocks);
    run_until(&mut world, |world| world.driver.scheduler().snapshot().counters.steps > 12);
    world
}

fn tokens(world: &Simulation) -> Vec<Vec<u32>> {
    world.outcomes.values().map(|outcome| outcome.tokens.clone()).collect()
}

/// Returns the tokens of its requests without disturbance.
fn undisturbed_tokens() -> Vec<Vec<u32>> {
    let mut world = busy(0);
    run_to_end(&mut world);
    tokens(&world)
}

#[test]
fn an_idle_tenant_sleeps_until_the_next_request() {
    let mut world = loaded(KEPT_COLUMNS);
    world.submit(request(1, 0..50, 30));
    order_sleep(&mut world, Sleep::Idle);
    run_to_end(&mut world);
    assert!(!asleep(&world), "it had work");
    order_sleep(&mut world, Sleep::Idle);
    run_until(&mut world, asleep);
    assert_eq!(world.driver.memory().used_bytes(), 0, "it holds nothing");
    world.submit(request(2, 0..60, 30));
    run_to_end(&mut world);
    assert_eq!(world.outcomes[&RequestId(2)].tokens.len(), 30);
    let core = world.driver.scheduler();
    assert_eq!(core.snapshot().counters.cached_tokens, 48, "what was said before is not computed again");
    assert_eq!(core.manager().figures().counted(Reason::SwapIn), 1);
}

#[test]
fn requests_keep_kv_while_tenant_sleeps_by_order() {
    let mut world = mid_run(KEPT_COLUMNS);
    order_sleep(&mut world, Sleep::Ordered);
    run_until(&mut world, asleep);
    assert_eq!(world.driver.scheduler().snapshot().waiting, 3);
    let now = world.now();
    world.run_until(now.plus(1_000_000_000));
    assert!(asleep(&world), "only the sender of the order to sleep wakes it");
    order_sleep(&mut world, Sleep::WakeUp);
    run_to_end(&mut world);
    assert_eq!(tokens(&world), undisturbed_tokens());
    let counters = world.driver.scheduler().snapshot().counters;
    assert_eq!((counters.preemptions, counters.recomputed_tokens), (0, 0), "nothing is computed twice");
}

#[test]
fn without_a_host_tier_requests_are_computed_again() {
    let mut world = mid_run(0);
    order_sleep(&mut world, Sleep::Ordered);
    run_until(&mut world, asleep);
    order_sleep(&mut world, Sleep::WakeUp);
    run_to_end(&mut world);
    assert_eq!(tokens(&world), undisturbed_tokens());
    assert!(world.driver.scheduler().snapshot().counters.recomputed_tokens > 0);
}

#[test]
fn a_request_that_waits_with_its_kv_can_be_cancelled() {
    let mut world = loaded(KEPT_COLUMNS);
    (1..=2).for_each(|id| world.submit(request(id, 0..30, 40)));
    run_until(&mut world, |world| world.driver.scheduler().snapshot().counters.steps > 5);
    order_sleep(&mut world, Sleep::Ordered);
    run_until(&mut world, asleep);
    world.driver.push(Event::Cancel(RequestId(1)));
    world.driver.push(Event::Sleep(Sleep::WakeUp));
    run_to_end(&mut world);
    assert_eq!(world.driver.scheduler().manager().figures().kv_counts().used_kv_blocks, 0);
}

#[test]
fn an_engine_that_dies_in_a_step_before_sleep_is_replayed_first() {
    let mut world = mid_run(KEPT_COLUMNS);
    world.kill_engine();
    order_sleep(&mut world, Sleep::Ordered);
    run_until(&mut world, asleep);
    order_sleep(&mut world, Sleep::WakeUp);
    run_to_end(&mut world);
    assert_eq!(tokens(&world), undisturbed_tokens());
}

//! Pause-Resume under the scheduler: no pause exceeds its bound by much, and other events neither end a pause nor count
//! as one.

use std::sync::Arc;

use sluice_policy::ids::RequestId;
use sluice_policy::placement_planner::pause::PausedSince;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::config::QueueOrder;
use sluice_scheduler::{Event, Request, Sleep};
use sluice_sim::Simulation;

use crate::support::{LIMIT, setup};

const LAYERS: u16 = 8;
/// All pauses of a request together last at most this long, nanoseconds: some fifty steps.
const BOUND_NS: u64 = 100_000_000;

fn request(id: u64, prompt: u32, max_tokens: u32) -> Request {
    let sampling = Arc::new(Sampling::default());
    let prompt = (0..prompt).collect();
    Request { id: RequestId(id), prompt, max_tokens, sampling, priority: 0, salt: id, paced: true }
}

/// Returns a tenant whose KV is too small for its concurrent requests.
fn world(order: QueueOrder) -> Simulation {
    let mut setup = setup(PolicyName::OrbitFlow, LAYERS, 24, 5);
    setup.params.host_kv_bytes = 400 * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
    setup.params.pause_bound_ns = BOUND_NS;
    setup.config.order = order;
    Simulation::new(setup, None).unwrap()
}

fn paused(world: &Simulation) -> Option<RequestId> {
    (1..1000).map(RequestId).find(|id| world.driver.scheduler().pauses().is_paused(*id))
}

fn run_until_paused(world: &mut Simulation) -> RequestId {
    loop {
        assert!(world.tick(LIMIT), "no request was paused");
        if let Some(id) = paused(world) {
            return id;
        }
    }
}

fn paused_ns(world: &Simulation, id: RequestId) -> u64 {
    world.driver.scheduler().pauses().total_ns(id, world.now())
}

/// Some long requests, and short ones with precedence over them.
#[test]
fn pause_ends_soon_after_bound_despite_memory_demand() {
    let mut world = world(QueueOrder::ShortestRemaining);
    (1..=6).for_each(|id| world.submit(request(id, 40, 100)));
    let (mut next, mut longest, mut pauses) = (7, 0, 0);
    while next < 300 {
        let waiting = world.driver.scheduler().snapshot().waiting;
        for _ in waiting..3 {
            world.submit(request(next, 30, 20));
            next += 1;
        }
        assert!(world.tick(LIMIT), "something goes on");
        let each = (1..next).map(|id| paused_ns(&world, RequestId(id)));
        longest = each.max().unwrap_or(0).max(longest);
        pauses = world.driver.scheduler().snapshot().counters.pauses;
    }
    eprintln!("{pauses} pauses, the longest {longest} ns");
    assert!(pauses > 5 && longest > BOUND_NS, "what is tested happens: {pauses} pauses, {longest} ns");
    assert!(longest < BOUND_NS * 3 / 2, "{longest} ns");
    assert!(world.run_until_idle(LIMIT), "every request ends");
}

#[test]
fn cancelled_queued_request_ends_no_pause() {
    let mut world = world(QueueOrder::FirstCome);
    (1..=8).for_each(|id| world.submit(request(id, 40, 100)));
    let id = run_until_paused(&mut world);
    world.submit(request(99, 40, 100));
    world.tick(LIMIT);
    world.cancel(RequestId(99));
    world.tick(LIMIT);
    assert!(world.outcomes[&RequestId(99)].finish.is_some(), "it was given up");
    let core = world.driver.scheduler();
    assert_eq!(core.pauses().can_resume(id, world.now(), true, false), Err(PausedSince::NothingCompleted));
}

#[test]
fn tenant_sleep_counts_as_no_pause() {
    let mut world = world(QueueOrder::FirstCome);
    (1..=8).for_each(|id| world.submit(request(id, 40, 100)));
    let id = run_until_paused(&mut world);
    world.driver.push(Event::Sleep(Sleep::Ordered));
    let asleep = world.now();
    world.run_until(asleep.plus(100 * BOUND_NS));
    assert!(paused_ns(&world, id) < BOUND_NS, "{} ns", paused_ns(&world, id));
    world.driver.push(Event::Sleep(Sleep::WakeUp));
    world.tick(LIMIT);
    assert!(paused_ns(&world, id) < BOUND_NS, "{} ns", paused_ns(&world, id));
    assert!(world.run_until_idle(LIMIT), "every request ends");
}

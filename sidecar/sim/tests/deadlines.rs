//! `Unified` with objectives: requests share KV in the order of their token deadlines.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_common::random::Rng;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::Slo;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Event, Request};
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{self, LIMIT, setup};

const MS: u64 = 1_000_000;
const LAYERS: u16 = 8;
/// A step takes about two milliseconds, so clients read a tenth of the possible tokens.
const SLO: Slo = Slo { ttft_ns: 100 * MS, tbt_ns: 20 * MS, allowed_miss_permille: 10 };
/// Without an objective for the first token, no request has a deadline.
const NO_DEADLINE: Slo = Slo { ttft_ns: 0, ..SLO };

fn request(id: u64, paced: bool) -> Request {
    let sampling = Arc::new(Sampling::default());
    let prompt = (0..40).collect();
    Request { id: RequestId(id), prompt, max_tokens: 100, sampling, priority: 0, salt: id, paced }
}

/// Returns a tenant with space for three such requests at full length, and a host tier for others. No layer is
/// remapped.
fn short(slo: Slo, host_kv_blocks: u64) -> Setup {
    let mut setup = setup(PolicyName::Unified, LAYERS, 24, 5);
    setup.params.host_kv_bytes = host_kv_blocks * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
    setup.params.slo = slo;
    setup.params.remap_cap_permille = 1;
    setup
}

fn loaded(setup: Setup) -> Simulation {
    let mut world = Simulation::new(setup, None).unwrap();
    assert!(world.run_until_idle(LIMIT), "it loads");
    world
}

/// Times of each request's tokens.
type Times = BTreeMap<RequestId, Vec<Nanos>>;

fn record_tokens(world: &Simulation, times: &mut Times) {
    for (id, outcome) in &world.outcomes {
        times.entry(*id).or_default().resize(outcome.tokens.len(), world.now());
    }
}

fn run(world: &mut Simulation) -> Times {
    let mut times = Times::new();
    while !world.driver.scheduler().is_idle() {
        assert!(world.tick(LIMIT) || world.driver.scheduler().is_idle(), "every request ends");
        record_tokens(world, &mut times);
    }
    times
}

/// Returns the number of tokens, over all requests, that a client would have read earlier.
fn late(times: &Times) -> usize {
    let late = |tokens: &Vec<Nanos>| {
        let due = |at: usize| tokens[0].plus(at as u64 * SLO.tbt_ns);
        (1..tokens.len()).filter(|at| tokens[*at] > due(*at)).count()
    };
    times.values().map(late).sum()
}

fn slowest_first(times: &Times) -> u64 {
    times.values().map(|tokens| tokens[0].0).max().unwrap_or(0)
}

fn served(slo: Slo, host_kv_blocks: u64, paced: bool) -> (Simulation, Times) {
    let mut world = loaded(short(slo, host_kv_blocks));
    (1..=8).for_each(|id| world.submit(request(id, paced)));
    let begun = world.now();
    let mut times = run(&mut world);
    times.values_mut().flatten().for_each(|at| *at = Nanos(at.since(begun)));
    (world, times)
}

#[test]
fn request_with_buffered_tokens_is_paused_and_resumes_before_they_run_out() {
    let (world, times) = served(SLO, 400, true);
    let counters = &world.driver.scheduler().snapshot().counters;
    assert!(counters.pauses > 0, "a request made room");
    assert_eq!((late(&times), counters.preemptions), (0, 0), "and no client noticed");
    assert!(slowest_first(&times) <= SLO.ttft_ns, "{} ns", slowest_first(&times));

    let (world, times) = served(NO_DEADLINE, 400, true);
    assert_eq!(world.driver.scheduler().snapshot().counters.pauses, 0);
    assert!(slowest_first(&times) > SLO.ttft_ns, "there is no room for all at once");
}

#[test]
fn request_without_buffered_tokens_is_not_paused() {
    let (world, times) = served(SLO, 400, false);
    assert!(slowest_first(&times) > SLO.ttft_ns, "{} ns", slowest_first(&times));
    let pauses = world.driver.scheduler().snapshot().counters.pauses;
    assert!(pauses < 8, "{pauses}: only where those who run have grown");
}

#[test]
fn request_without_host_space_for_kv_is_not_paused() {
    let (world, _) = served(SLO, 0, true);
    let counters = &world.driver.scheduler().snapshot().counters;
    assert_eq!(counters.pauses, 0);
    assert!(counters.preemptions > 0, "a request is one too many");
}

/// Layers may not be remapped. KV of running requests is offloaded while that increases their tokens, and requests
/// still give up memory.
#[test]
fn plan_offloads_kv_only_if_running_requests_gain_tokens() {
    let placed = |link_bytes_per_second: u64| {
        let mut setup = short(SLO, 400);
        setup.params.remap_cap_permille = 0;
        let profile = &mut setup.profile;
        (profile.link_bytes_per_second, profile.out_bytes_per_second) =
            (link_bytes_per_second, link_bytes_per_second);
        let mut world = loaded(setup);
        (1..=8).for_each(|id| world.submit(request(id, true)));
        let times = run(&mut world);
        assert_eq!(late(&times), 0, "{link_bytes_per_second} bytes per second");
        let count = |reason| world.driver.scheduler().manager().figures().counted(reason);
        assert!(count(Reason::Pause) > 0, "{link_bytes_per_second} bytes per second: a request made room");
        (world.driver.scheduler().manager().figures().fetched_bytes(), count(Reason::DeclinedStall))
    };
    let (fast, slow) = (placed(1 << 34), placed(1 << 28));
    assert!(
        4 * fast.0 > 5 * slow.0 && slow.1 > 2 * fast.1,
        "fetched and declined: {fast:?} by a fast link, {slow:?} by a slow one"
    );
}

/// More requests arrive at once than can be in time, followed by single requests that can.
#[test]
fn late_request_yields_to_timely_one_for_bounded_time() {
    const BOUND_NS: u64 = 400 * MS;
    let slo = Slo { ttft_ns: 30 * MS, ..SLO };
    let mut setup = short(slo, 400);
    setup.params.pause_bound_ns = BOUND_NS;
    let mut world = loaded(setup);
    let (begun, mut times, mut next) = (world.now(), Times::new(), 31);
    (1..=30).for_each(|id| world.submit(request(id, true)));
    let has_one = |times: &Times, id: u64| times.get(&RequestId(id)).is_some_and(|made| !made.is_empty());
    let mut came = BTreeMap::new();
    while !(1..=30).all(|id| has_one(&times, id)) {
        assert!(world.tick(LIMIT));
        record_tokens(&world, &mut times);
        if world.now().since(begun) > (next - 30) * 40 * MS {
            came.insert(RequestId(next), world.now());
            world.submit(Request { max_tokens: 10, ..request(next, true) });
            next += 1;
        }
        assert!(world.now().since(begun) < 20 * BOUND_NS, "a request waits for ever");
    }
    let first = |id: &RequestId| times.get(id).and_then(|tokens| tokens.first());
    let waited = |(id, at): (&RequestId, &Nanos)| first(id).map(|token| token.since(*at));
    let soon = came.iter().take(4).filter_map(waited).filter(|ns| *ns <= slo.ttft_ns).count();
    assert!(soon >= 3, "{soon} of the first four that came later had their first token in time");
    let before = (1..=30).filter(|id| times[&RequestId(*id)][0] > *first(&RequestId(31)).unwrap()).count();
    assert!(before > 0, "some of those who were late came after the first of them");
}

/// All pauses of a request together leave its client without a token for at most the bound and a small margin.
#[test]
fn pause_bound_starts_when_buffer_is_empty() {
    const BOUND_NS: u64 = 30 * MS;
    let mut setup = short(SLO, 400);
    setup.params.pause_bound_ns = BOUND_NS;
    let mut world = loaded(setup);
    (1..=8).for_each(|id| world.submit(request(id, true)));
    // Pause time that counts, and the time that each request has been paused.
    let (mut counted, mut aside, mut last) = (0, BTreeMap::<u64, u64>::new(), world.now());
    while !world.driver.scheduler().is_idle() {
        assert!(world.tick(LIMIT) || world.driver.scheduler().is_idle(), "every request ends");
        let pauses = world.driver.scheduler().pauses();
        for id in (1..=8).filter(|id| pauses.is_paused(RequestId(*id))) {
            *aside.entry(id).or_default() += world.now().since(last);
            counted = counted.max(pauses.total_ns(RequestId(id), world.now()));
        }
        last = world.now();
    }
    let aside = aside.values().max().copied().unwrap_or(0);
    assert!(aside > 2 * BOUND_NS, "{aside} ns: far longer than the bound");
    assert!(counted < BOUND_NS * 3 / 2, "{counted} ns");
}

#[test]
fn policy_change_changes_no_token() {
    let mut pauses = 0;
    for seed in 1..=12 {
        let load = support::load(24, seed);
        let expected = support::expected(&load, LAYERS);
        let mut setup = setup(PolicyName::Unified, LAYERS, 24, seed);
        setup.params.host_kv_bytes = 60 * u64::from(LAYERS) * setup.geometry.layer_block_bytes;
        setup.params.slo = SLO;
        let mut rng = Rng::new(seed);
        let world = support::run(setup, &load, |world, _| {
            let other = PolicyName::ALL[rng.below(PolicyName::ALL.len() as u64) as usize];
            let policy = if rng.chance(500) { PolicyName::Unified } else { other };
            world.driver.push(Event::Policy(policy));
        });
        support::assert_same(&world, &expected, &format!("seed {seed}"));
        pauses += world.driver.scheduler().snapshot().counters.pauses;
    }
    assert!(pauses > 0, "a request made room");
}

//! Time slices: a prompt chunk fits the largest quantum once prompts have been measured, and prompts progress with any
//! quantum.

use std::sync::{Arc, Mutex};

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand};
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::{PeerPort, PeerPortEvent, SliceCommand};
use sluice_scheduler::{Event, Membership, TimeSharing};
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, forced, request, setup};

const MS: u64 = 1_000_000;
/// Time until an engine's successor attaches, nanoseconds.
const RESTART_NS: u64 = 1_000 * MS;

/// The tenant's time-slice commands with their times.
#[derive(Clone, Debug, Default)]
struct RecordingPort(Arc<Mutex<Vec<(Nanos, SliceCommand)>>>);

impl PeerPort for RecordingPort {
    fn send(&mut self, _now: Nanos, message: PeerCommand) {
        panic!("no peer to write to: {message:?}");
    }

    fn send_slice_command(&mut self, now: Nanos, call: SliceCommand) {
        self.0.lock().unwrap().push((now, call));
    }
}

impl RecordingPort {
    /// Takes the commands since the last call.
    fn take(&self) -> Vec<SliceCommand> {
        self.0.lock().unwrap().drain(..).map(|(_, call)| call).collect()
    }
}

/// Returns a tenant in time slices, with two long prompts.
fn tenant(quantum_ns: u64, calls: &RecordingPort) -> Simulation {
    tenant_of(setup(PolicyName::Oneiros, 4, 60, 1), quantum_ns, calls)
}

fn tenant_of(mut setup: Setup, quantum_ns: u64, calls: &RecordingPort) -> Simulation {
    setup.config.sharing = TimeSharing::Temporal(Quantum::new(0, quantum_ns));
    let me = Peer { index: 0, instance: 1 };
    setup.config.membership = Some(Membership { own_peer: me, terms: NegotiationPolicy::default() });
    (setup.profile.layer_ns, setup.profile.layer_token_ns) = (100_000, 50_000);
    setup.profile.restart_ns = RESTART_NS;
    let world = Simulation::with_peers(Box::new(calls.clone()), setup, None);
    let mut world = world.unwrap_or_else(|refused| panic!("{refused}"));
    for id in 1..=2 {
        let mut request = request(id, &mut sluice_common::random::Rng::new(id));
        request.prompt = (0..120).map(|token| token + 200 * id as u32).collect();
        request.max_tokens = 8;
        world.submit(request);
    }
    world
}

fn has_ended(world: &Simulation) -> bool {
    world.outcomes.values().all(|outcome| outcome.finish.is_some())
}

/// Grants the time slice.
fn grant_slice(world: &mut Simulation, epoch: u64) {
    world.driver.push(Event::Peer(PeerPortEvent::SliceGranted { epoch }));
}

/// Signals that a peer waits for the time slice.
fn contend_slice(world: &mut Simulation, epoch: u64) {
    world.driver.push(Event::Peer(PeerPortEvent::SliceRequested { epoch }));
}

/// Advances by `ms` milliseconds.
fn advance_ms(world: &mut Simulation, ms: u64) {
    let until = world.now().plus(ms * MS);
    world.run_until(until);
}

/// Returns the lengths of all time slices of a tenant with two long prompts, nanoseconds. Each slice is granted as soon
/// as it is requested, and a peer always waits.
fn slice_lengths(quantum_ns: u64) -> Vec<u64> {
    let calls = RecordingPort::default();
    slice_lengths_of(tenant(quantum_ns, &calls), &calls)
}

fn slice_lengths_of(mut world: Simulation, calls: &RecordingPort) -> Vec<u64> {
    let (mut held, mut since, mut epoch) = (Vec::new(), Nanos(0), 0);
    while !has_ended(&world) {
        let mut more = world.tick(LIMIT);
        for (at, call) in calls.0.lock().unwrap().drain(..) {
            if call == SliceCommand::Release {
                held.push(at.since(since));
                continue;
            }
            (since, epoch, more) = (world.now(), epoch + 1, true);
            grant_slice(&mut world, epoch);
            contend_slice(&mut world, epoch);
        }
        more |= has_ended(&world);
        assert!(more, "both end");
    }
    assert!(world.outcomes[&RequestId(2)].tokens.len() == 8);
    held
}

#[test]
fn a_prompts_chunk_fits_the_largest_quantum_once_one_was_measured() {
    // 64 tokens take 4 x 3.3 ms.
    let held = slice_lengths(5 * MS);
    assert!(held[0] > 5 * MS, "nothing was measured before: {held:?}");
    assert!(held.len() > 8, "{held:?}");
    // The constant part of a step is unknown until a decode was measured.
    let unknown_ns = 4 * 100_000;
    assert!(held[1..].iter().all(|ns| *ns <= 5 * MS + unknown_ns), "{held:?}");
    let longest = held[1..].iter().max().copied().unwrap_or(0);
    assert!(longest > 4 * MS, "a slice is used: {held:?}");
}

#[test]
fn a_first_burst_advances_by_chunks_although_no_step_fits_the_quantum() {
    let calls = RecordingPort::default();
    let world = tenant(5 * MS, &calls);
    // 12 ms whatever the step, and 40 us for each token: the first 64 tokens take 14.6 ms, 0.23 ms each.
    {
        let profile = &mut world.device.borrow_mut().profile;
        (profile.layer_ns, profile.layer_token_ns) = (3 * MS, 10_000);
    }
    let held = slice_lengths_of(world, &calls);
    // 176 more tokens at 21 in a slice, and seven decodes of each request.
    assert!(held.len() <= 1 + 9 + 14, "{}: {held:?}", held.len());
}

#[test]
fn a_decode_is_measured_although_prompts_of_the_first_burst_wait() {
    // After 64 tokens, nine in a step: the first prompt takes eight steps, the second one 13.
    let mut world = tenant(2 * MS, &RecordingPort::default());
    advance_ms(&mut world, 100);
    grant_slice(&mut world, 1);
    while world.driver.scheduler().snapshot().counters.steps < 18 {
        world.tick(LIMIT);
    }
    let tokens = [1, 2].map(|id| world.outcomes[&RequestId(id)].tokens.len());
    assert!(tokens[0] > 0 && tokens[1] == 0, "the second prompt waits: {tokens:?}");
    let measured = world.driver.scheduler().manager().timing().step_stats().compute_known();
    assert!(measured, "a step without prompt tokens came between");
}

#[test]
fn quantum_below_one_token_runs_prompts_token_by_token() {
    let held = slice_lengths(MS / 10);
    // 120 tokens and a few more, one per time slice; one whole chunk before anything was measured.
    assert!(held.len() > 60, "{} slices", held.len());
    // A step is at most both requests' decodes, or one decode and one prompt token; a time slice has one step.
    let two_tokens = 4 * (100_000 + 2 * 50_000);
    let longest = held[1..].iter().max().copied().unwrap_or(0);
    assert!(longest <= two_tokens, "{longest} ns");
}

/// Slows the whole device down by a factor of `times`.
fn slow(world: &Simulation, times: u64) {
    let profile = &mut world.device.borrow_mut().profile;
    (profile.layer_ns, profile.layer_token_ns) = (100_000 * times, 5_000 * times);
}

#[test]
fn slow_decodes_are_measured_again_while_prompts_wait() {
    let calls = RecordingPort::default();
    let mut world = tenant(5 * MS, &calls);
    advance_ms(&mut world, 100);
    grant_slice(&mut world, 1);
    slow(&world, 20);
    while !has_ended(&world) {
        assert!(world.tick(LIMIT) || has_ended(&world), "slowly, but they end");
    }
    assert!(
        world.driver.scheduler().manager().timing().step_stats().token_compute_ns() > 5 * u128::from(MS),
        "a decode takes a slice"
    );
    slow(&world, 1);
    for id in 3..=10 {
        let mut request = request(id, &mut sluice_common::random::Rng::new(id));
        // The first one decodes while the prompts of the others are computed.
        let (prompt, answer) = if id == 3 { (4, 100) } else { (120, 8) };
        request.prompt = (0..prompt).map(|token| token + 200 * id as u32).collect();
        request.max_tokens = answer;
        world.submit(request);
    }
    let before = world.driver.scheduler().snapshot().counters.steps;
    for epoch in 2..1_000 {
        advance_ms(&mut world, 1);
        if calls.take().contains(&SliceCommand::Request) {
            grant_slice(&mut world, epoch);
        }
    }
    assert!(has_ended(&world));
    let steps = world.driver.scheduler().snapshot().counters.steps - before;
    assert!(steps < 300, "{steps} steps for 840 tokens of prompts");
}

#[test]
fn slice_without_engine_is_released_at_once_and_requested_again() {
    let calls = RecordingPort::default();
    let mut world = tenant(5 * MS, &calls);
    advance_ms(&mut world, 100);
    assert_eq!(calls.take(), [SliceCommand::Request]);
    world.kill_engine();
    advance_ms(&mut world, 100);
    grant_slice(&mut world, 1);
    advance_ms(&mut world, 1);
    assert_eq!(calls.take(), [SliceCommand::Release], "peers do not wait for an engine");
    advance_ms(&mut world, 800);
    assert_eq!(calls.take(), [], "without an engine there is nothing to run");
    advance_ms(&mut world, 100);
    assert_eq!(calls.take(), [SliceCommand::Request], "its successor has come");
    grant_slice(&mut world, 2);
    advance_ms(&mut world, 1);
    assert!(world.driver.scheduler().holds_slice());
}

#[test]
fn engine_crash_in_slice_releases_it_and_step_is_replayed_later() {
    let calls = RecordingPort::default();
    let mut world = tenant(50 * MS, &calls);
    advance_ms(&mut world, 100);
    grant_slice(&mut world, 1);
    advance_ms(&mut world, 1);
    world.kill_engine();
    advance_ms(&mut world, 1);
    assert_eq!(calls.take(), [SliceCommand::Request, SliceCommand::Release]);
    advance_ms(&mut world, 1_000);
    assert_eq!(calls.take(), [SliceCommand::Request]);
    grant_slice(&mut world, 2);
    for epoch in 3..100 {
        advance_ms(&mut world, 100);
        if calls.take().contains(&SliceCommand::Request) {
            grant_slice(&mut world, epoch);
        }
    }
    assert!(has_ended(&world));
    assert_eq!(world.driver.scheduler().snapshot().counters.replays, 1);
}

#[test]
fn prompts_use_the_time_in_which_a_step_waits_for_layers() {
    let (mut setup, calls) = (forced(setup(PolicyName::Oneiros, 4, 60, 1), 2, 1), RecordingPort::default());
    // 16 ms per layer copy, 48 ms per step, regardless of its tokens.
    setup.profile.link_bytes_per_second = 16 << 20;
    let held = slice_lengths_of(tenant_of(setup, MS / 10, &calls), &calls);
    // Two prompts of 120 tokens with 64 per step, and 8 tokens after each.
    assert!(held.len() < 40, "{} slices", held.len());
}

#[test]
fn tenant_keeps_slice_while_it_has_work_and_no_waiter() {
    let calls = RecordingPort::default();
    let mut world = tenant(15 * MS, &calls);
    advance_ms(&mut world, 100);
    grant_slice(&mut world, 1);
    // A stale notification about an earlier time slice.
    contend_slice(&mut world, 0);
    let begun = world.now();
    while !has_ended(&world) {
        assert!(world.tick(LIMIT) || has_ended(&world), "nothing else is needed");
    }
    assert!(world.now().since(begun) > 45 * MS, "that is several quanta");
    assert_eq!(
        calls.take(),
        [SliceCommand::Request, SliceCommand::Release],
        "one slice, to the end of all work"
    );
    let steps = world.driver.scheduler().snapshot().counters.steps;
    assert!(steps < 20, "{steps} steps: prompts do not go by crumbs when the quantum is over");
}

#[test]
fn peer_arriving_after_quantum_waits_for_one_step() {
    let calls = RecordingPort::default();
    let mut world = tenant(5 * MS, &calls);
    advance_ms(&mut world, 100);
    grant_slice(&mut world, 1);
    advance_ms(&mut world, 20);
    assert_eq!(calls.take(), [SliceCommand::Request]);
    let steps = world.driver.scheduler().snapshot().counters.steps;
    contend_slice(&mut world, 1);
    loop {
        let more = world.tick(LIMIT);
        if calls.take().contains(&SliceCommand::Release) {
            break;
        }
        assert!(more, "it is given up");
    }
    assert!(world.driver.scheduler().snapshot().counters.steps <= steps + 1);
    assert!(!has_ended(&world));
}

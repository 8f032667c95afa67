//! A tenant whose engines crash repeatedly while its peers lend, borrow and wait for time slices: every request ends
//! with the tokens that it has alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sluice_common::random::Rng;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::peers::victim::{PeerState, PeerView};
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::{PeerPort, PeerPortEvent, SliceCommand};
use sluice_scheduler::{Event, Membership, TimeSharing};
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, request, setup};

const MS: u64 = 1_000_000;
const OTHER: Peer = Peer { index: 1, instance: 1 };
/// Chunks that the peer can lend.
const PEER_CHUNKS: u32 = 40;
const REQUESTS: u64 = 10;
/// Tokens of a step that processes all prompts at once.
const WIDE_TOKENS: u32 = 1024;
/// Engines crash within this time, nanoseconds.
const FAULTS_NS: u64 = 3_000 * MS;
/// Limit from the attachment of the last engine to the end of all requests, nanoseconds.
const RECOVERY_LIMIT_NS: u64 = 20_000 * MS;

#[derive(Clone, Debug)]
enum OutMessage {
    Peer(PeerCommand),
    Slice(SliceCommand),
}

/// The tenant's messages with their times.
#[derive(Clone, Debug, Default)]
struct RecordingPort(Arc<Mutex<Vec<(Nanos, OutMessage)>>>);

impl PeerPort for RecordingPort {
    fn send(&mut self, now: Nanos, message: PeerCommand) {
        self.0.lock().unwrap().push((now, OutMessage::Peer(message)));
    }

    fn send_slice_command(&mut self, now: Nanos, call: SliceCommand) {
        self.0.lock().unwrap().push((now, OutMessage::Slice(call)));
    }
}

/// A simulated peer that answers every message after a delay.
#[derive(Debug)]
struct FakePeer {
    port: RecordingPort,
    rng: Rng,
    /// Chunks that it can still lend.
    left: u32,
    /// Chunks lent, and chunks borrowed, by nonce.
    lent: BTreeMap<Nonce, u32>,
    borrowed: BTreeMap<Nonce, u32>,
    asks: u64,
    epoch: u64,
    due: Vec<(Nanos, PeerPortEvent)>,
}

impl FakePeer {
    fn new(port: RecordingPort, seed: u64) -> FakePeer {
        let (lent, borrowed) = (BTreeMap::new(), BTreeMap::new());
        let rng = Rng::new(seed);
        FakePeer { port, rng, left: PEER_CHUNKS, lent, borrowed, asks: 0, epoch: 0, due: Vec::new() }
    }

    /// Returns the peer's events that are due, in order.
    fn events(&mut self, now: Nanos) -> Vec<PeerPortEvent> {
        let messages = std::mem::take(&mut *self.port.0.lock().unwrap());
        for (at, word) in messages {
            match word {
                OutMessage::Peer(message) => self.on_message(at, message),
                OutMessage::Slice(SliceCommand::Request) => self.schedule_slice(at),
                OutMessage::Slice(SliceCommand::Release) => {}
            }
        }
        if self.rng.chance(5) {
            self.act(now);
        }
        self.due.sort_by_key(|(at, _)| *at);
        let later = self.due.partition_point(|(at, _)| *at <= now);
        self.due.drain(..later).map(|(_, event)| event).collect()
    }

    fn schedule(&mut self, at: Nanos, most_ns: u64, event: PeerPortEvent) {
        let at = at.plus(self.rng.below(most_ns));
        self.due.push((at, event));
    }

    fn send(&mut self, at: Nanos, event: PeerEvent) {
        self.schedule(at, 6 * MS, PeerPortEvent::Peer(event));
    }

    /// Grants the time slice at `at`; a peer requests it during the slice or later.
    fn schedule_slice(&mut self, at: Nanos) {
        self.epoch += 1;
        let (epoch, at) = (self.epoch, at.plus(self.rng.below(60 * MS)));
        self.due.push((at, PeerPortEvent::SliceGranted { epoch }));
        self.schedule(at, 100 * MS, PeerPortEvent::SliceRequested { epoch });
    }

    fn on_message(&mut self, at: Nanos, message: PeerCommand) {
        match message {
            PeerCommand::Survey => self.send(at, PeerEvent::Survey(vec![self.peer_view()])),
            PeerCommand::Ask { nonce, chunks, ttl_ns, .. } => self.lend(at, nonce, chunks, ttl_ns),
            PeerCommand::Renew { nonce, ttl_ns, .. } => {
                self.send(at, PeerEvent::Renewed { peer: OTHER, nonce, ttl_ns })
            }
            PeerCommand::Return { nonce, chunks, .. } => self.on_returned(nonce, chunks),
            PeerCommand::Withdraw { nonce, .. } => self.on_returned(nonce, u32::MAX),
            PeerCommand::Answer { nonce, chunks, .. } if chunks > 0 => {
                self.borrowed.insert(nonce, chunks);
            }
            PeerCommand::Revoke { nonce, .. } => self.repay(at, nonce),
            _ => {}
        }
    }

    fn peer_view(&self) -> PeerView {
        let live = PeerState { lendable_chunks: self.left, ..PeerState::default() };
        PeerView { peer: OTHER, priority: 0, reachable: true, live: Some(live) }
    }

    fn lend(&mut self, at: Nanos, nonce: Nonce, chunks: u32, ttl_ns: u64) {
        let chunks = chunks.min(self.left);
        let event = match chunks {
            0 => PeerEvent::Refused { peer: OTHER, nonce, why: None },
            _ => PeerEvent::Granted { peer: OTHER, nonce, chunks, ttl_ns },
        };
        self.left -= chunks;
        self.lent.insert(nonce, chunks);
        self.send(at, event);
    }

    /// Handles a returned loan, or a part of it. 0 chunks: the loan was never accepted.
    fn on_returned(&mut self, nonce: Nonce, chunks: u32) {
        let Some(out) = self.lent.get_mut(&nonce) else { return };
        let back = if chunks == 0 { *out } else { chunks.min(*out) };
        *out -= back;
        self.left += back;
    }

    fn repay(&mut self, at: Nanos, nonce: Nonce) {
        if let Some(chunks) = self.borrowed.remove(&nonce) {
            self.send(at, PeerEvent::Returned { peer: OTHER, nonce, chunks });
        }
    }

    /// Revokes a loan, asks for one, or returns one.
    fn act(&mut self, now: Nanos) {
        let lent = self.lent.iter().find(|(_, chunks)| **chunks > 0).map(|(nonce, chunks)| (*nonce, *chunks));
        let borrowed = self.borrowed.keys().next().copied();
        match (self.rng.below(3), lent, borrowed) {
            (0, Some((nonce, chunks)), _) => {
                self.send(now, PeerEvent::Revoked { peer: OTHER, nonce, chunks })
            }
            (1, ..) => self.ask(now),
            (2, _, Some(nonce)) => self.repay(now, nonce),
            _ => {}
        }
    }

    fn ask(&mut self, now: Nanos) {
        self.asks += 1;
        let (nonce, ttl_ns) = (Nonce(1 << 60 | self.asks), 10_000 * MS);
        let chunks = self.rng.between(1, 8) as u32;
        self.send(now, PeerEvent::Asked { peer: OTHER, nonce, chunks, ttl_ns });
    }
}

/// Configures one step that processes the prompts of all requests, for which KV has no space.
fn wide(mut setup: Setup) -> Setup {
    let activation =
        |setup: &Setup| setup.geometry.chunks_for(setup.geometry.activation.bytes(setup.params.max_step));
    let before = activation(&setup);
    (setup.config.max_step_tokens, setup.params.max_step.tokens) = (WIDE_TOKENS, WIDE_TOKENS);
    setup.geometry.capacity_chunks += activation(&setup) - before;
    setup
}

/// Returns a tenant with more requests than its KV can hold, with or without time slices.
fn tenant(is_temporal: bool, is_wide: bool, port: &RecordingPort, layer_ns: u64) -> Simulation {
    let setup = setup(PolicyName::Oneiros, 4, 30, 1);
    let mut setup = if is_wide { wide(setup) } else { setup };
    setup.params.share_chunks = setup.geometry.capacity_chunks;
    setup.geometry.capacity_chunks += PEER_CHUNKS;
    let quantum = Quantum::new(5 * MS, 50 * MS);
    setup.config.sharing = if is_temporal { TimeSharing::Temporal(quantum) } else { TimeSharing::Spatial };
    let me = Peer { index: 0, instance: 1 };
    let terms = NegotiationPolicy { min_residence_ns: 0, ..NegotiationPolicy::default() };
    setup.config.membership = Some(Membership { own_peer: me, terms });
    setup.profile.layer_ns = layer_ns;
    let mut world = Simulation::with_peers(Box::new(port.clone()), setup, None).unwrap();
    for id in 1..=REQUESTS {
        let mut request = request(id, &mut Rng::new(id));
        request.prompt = (0..90).map(|token| token + 100 * id as u32).collect();
        request.max_tokens = 40;
        world.submit(request);
    }
    world
}

fn has_ended(world: &Simulation) -> bool {
    world.outcomes.values().all(|outcome| outcome.finish.is_some())
}

/// Random times of engine crashes and restarts; some engines crash before they serve.
#[derive(Debug)]
struct CrashInjector {
    rng: Rng,
    left: u64,
    next: Nanos,
    /// The time by which the next engine has attached.
    last: Nanos,
}

impl CrashInjector {
    fn new(mut rng: Rng) -> CrashInjector {
        let (left, next) = (rng.between(1, 12), Nanos(rng.below(50 * MS)));
        CrashInjector { rng, left, next, last: Nanos(0) }
    }

    fn crash(&mut self, world: &mut Simulation) {
        let now = world.now();
        if self.left == 0 || now < self.next || now.0 >= FAULTS_NS {
            return;
        }
        let restart_ns = self.rng.between(1, 1_000) * MS;
        world.device.borrow_mut().profile.restart_ns = restart_ns;
        world.kill_engine();
        world.run_until(now);
        self.left -= 1;
        self.last = now.plus(restart_ns);
        let life_ns = if self.rng.chance(500) { 5 * MS } else { 200 * MS };
        self.next = self.last.plus(self.rng.below(life_ns));
    }
}

/// Runs a tenant with engine crashes until all its requests have ended.
fn run_with_crashes(seed: u64) -> Simulation {
    let (mut rng, port) = (Rng::new(seed), RecordingPort::default());
    let (is_temporal, is_wide) = (rng.chance(700), rng.chance(500));
    let mut world = tenant(is_temporal, is_wide, &port, rng.between(1, 50) * MS / 10);
    let mut other = FakePeer::new(port, rng.next_u64());
    let mut deaths = CrashInjector::new(rng);
    while !has_ended(&world) {
        deaths.crash(&mut world);
        let now = world.now();
        let waited_ns = now.since(deaths.last.max(Nanos(FAULTS_NS)));
        assert!(
            waited_ns < RECOVERY_LIMIT_NS,
            "seed {seed}: {:?}, {other:?}",
            world.driver.scheduler().snapshot()
        );
        other.events(now).into_iter().for_each(|event| world.driver.push(Event::Peer(event)));
        world.run_until(now.plus(MS));
    }
    world
}

/// Returns a run without crashes and without peers.
fn baseline() -> Simulation {
    let mut world = tenant(false, false, &RecordingPort::default(), MS / 10);
    while !has_ended(&world) {
        assert!(world.tick(LIMIT) || has_ended(&world), "without crashes all end");
    }
    world
}

fn assert_same_tokens(seed: u64, baseline: &Simulation) {
    let mut world = run_with_crashes(seed);
    for id in (1..=REQUESTS).map(RequestId) {
        assert_eq!(world.outcomes[&id].tokens, baseline.outcomes[&id].tokens, "seed {seed}, {id:?}");
    }
    assert_eq!(world.driver.compute().wrong_reads(), 0, "seed {seed}");
}

/// Returns the number of tenants to try: from the environment, else a small default.
fn tenants() -> u64 {
    std::env::var("SLUICE_TENANTS").map_or(60, |count| count.parse().expect("SLUICE_TENANTS is a number"))
}

#[test]
fn engine_crashes_change_no_token() {
    let baseline = baseline();
    (1..=tenants()).for_each(|seed| assert_same_tokens(seed, &baseline));
}

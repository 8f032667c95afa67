//! Lost loans: lent memory never returns, or a granted loan never arrives. The tenant still serves.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::peers::victim::{PeerState, PeerView};
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::{PeerPort, PeerPortEvent, SliceCommand};
use sluice_scheduler::{Event, Membership, TimeSharing};
use sluice_sim::Simulation;

use crate::support::{LIMIT, request, setup};

const MS: u64 = 1_000_000;
const BORROWER: Peer = Peer { index: 1, instance: 2 };
const LOAN: Nonce = Nonce(7);
/// Largest time slice of all tenants, much shorter than the revocation bound.
const QUANTUM_NS: u64 = 50 * MS;
const BOUND_NS: u64 = 200 * MS;

/// Messages of a tenant to peers and to the time-slice queue.
#[derive(Clone, Debug)]
enum OutMessage {
    Peer(PeerCommand),
    Slice(SliceCommand),
}

/// Peers that record every message and answer none by themselves.
#[derive(Clone, Debug, Default)]
struct RecordingPort(Arc<Mutex<VecDeque<(Nanos, OutMessage)>>>);

impl PeerPort for RecordingPort {
    fn send(&mut self, now: Nanos, message: PeerCommand) {
        self.0.lock().unwrap().push_back((now, OutMessage::Peer(message)));
    }

    fn send_slice_command(&mut self, now: Nanos, call: SliceCommand) {
        self.0.lock().unwrap().push_back((now, OutMessage::Slice(call)));
    }
}

/// A tenant and its messages.
struct Tenant {
    world: Simulation,
    port: RecordingPort,
    messages: Vec<(Nanos, PeerCommand)>,
    /// Time of its next slice, and number of slices so far.
    slice_at: Option<Nanos>,
    epoch: u64,
    /// The peers that it finds in a survey. They lend what they are asked for.
    peers: Vec<PeerView>,
}

impl Tenant {
    /// Creates a loaded tenant among peers.
    fn new(sharing: TimeSharing, kv_blocks: u32) -> Tenant {
        let mut setup = setup(PolicyName::Oneiros, 8, kv_blocks, 1);
        setup.config.sharing = sharing;
        // The other half of the GPU belongs to the peers.
        setup.params.share_chunks = setup.geometry.capacity_chunks;
        setup.geometry.capacity_chunks *= 2;
        let terms = NegotiationPolicy { revoke_bound_ns: BOUND_NS, ..NegotiationPolicy::default() };
        setup.config.membership = Some(Membership { own_peer: Peer { index: 0, instance: 1 }, terms });
        let silent = RecordingPort::default();
        let world = Simulation::with_peers(Box::new(silent.clone()), setup, None);
        let world = world.unwrap_or_else(|refused| panic!("{refused}"));
        let (messages, peers) = (Vec::new(), Vec::new());
        let mut tenant = Tenant { world, port: silent, messages, slice_at: None, epoch: 0, peers };
        tenant.run_until(Nanos(1_000 * MS));
        assert!(tenant.world.driver.scheduler().manager().status().is_loaded());
        tenant
    }

    /// Lends all that the tenant can spare to a peer that never returns it.
    fn lend_all(&mut self) {
        let chunks = self.world.driver.scheduler().manager().loans().lendable_chunks();
        self.on_peer_event(PeerEvent::Asked { peer: BORROWER, nonce: LOAN, chunks, ttl_ns: 1 << 40 });
        self.run_until(self.world.now().plus(100 * MS));
        assert_eq!(self.world.driver.scheduler().manager().loans().lent_chunks(), chunks);
        assert!(revocations(self).is_empty(), "a loan that is just returning is not revoked");
    }

    fn on_peer_event(&mut self, event: PeerEvent) {
        self.world.driver.push(Event::Peer(PeerPortEvent::Peer(event)));
    }

    fn ask(&mut self, requests: u64) {
        let first = self.world.outcomes.len() as u64 + 1;
        for id in first..first + requests {
            let mut request = request(id, &mut sluice_common::random::Rng::new(id));
            request.prompt = (0..60).map(|token| token + 200 * id as u32).collect();
            request.max_tokens = 60;
            self.world.submit(request);
        }
    }

    /// Grants the next time slice when the peer's slice has ended.
    fn process_messages(&mut self) {
        let messages: Vec<_> = self.port.0.lock().unwrap().drain(..).collect();
        for (at, message) in messages {
            match message {
                OutMessage::Slice(SliceCommand::Request) => self.slice_at = Some(at.plus(QUANTUM_NS)),
                OutMessage::Slice(SliceCommand::Release) => {}
                OutMessage::Peer(message) => {
                    self.reply(&message);
                    self.messages.push((at, message));
                }
            }
        }
        if self.slice_at.take_if(|at| *at <= self.world.now()).is_some() {
            self.epoch += 1;
            self.world.driver.push(Event::Peer(PeerPortEvent::SliceGranted { epoch: self.epoch }));
        }
    }

    fn reply(&mut self, message: &PeerCommand) {
        match *message {
            PeerCommand::Survey => self.on_peer_event(PeerEvent::Survey(self.peers.clone())),
            PeerCommand::Ask { peer, nonce, chunks, ttl_ns } => {
                self.on_peer_event(PeerEvent::Granted { peer, nonce, chunks, ttl_ns });
            }
            _ => {}
        }
    }

    fn run_until(&mut self, limit: Nanos) {
        while self.world.now() < limit {
            let next = self.slice_at.map_or(limit, |slice_at| slice_at.min(limit)).max(self.world.now());
            if !self.world.tick(next) {
                self.world.run_until(next);
            }
            self.process_messages();
        }
    }

    fn ended(&self) -> bool {
        self.world.outcomes.values().all(|outcome| outcome.finish.is_some())
    }

    /// Returns the time until all requests have ended.
    fn serves(&mut self) -> u64 {
        let since = self.world.now();
        while !self.ended() {
            let now = self.world.now();
            assert!(
                now.since(since) < LIMIT.0 / 60,
                "it stands: {:?}",
                self.world.driver.scheduler().snapshot()
            );
            self.run_until(now.plus(MS));
        }
        self.world.now().since(since)
    }
}

#[test]
fn tenant_with_unreturned_layers_serves_even_if_time_slice_is_shorter_than_bound() {
    let mut tenant = Tenant::new(TimeSharing::Temporal(Quantum::new(0, QUANTUM_NS)), 60);
    tenant.ask(1);
    tenant.serves();
    tenant.lend_all();
    assert!(tenant.world.driver.scheduler().manager().status().absent_layers() > 0, "layers are lent");
    tenant.ask(2);
    let took_ns = tenant.serves();
    // The tenant waits for the bound, over several time slices, and no longer.
    assert!(took_ns < 2 * BOUND_NS + 4 * QUANTUM_NS, "{took_ns} ns");
}

/// Returns the times at which the loan was revoked.
fn revocations(tenant: &Tenant) -> Vec<Nanos> {
    let revoked = |message: &PeerCommand| matches!(message, PeerCommand::Revoke { nonce: LOAN, .. });
    tenant.messages.iter().filter(|(_, message)| revoked(message)).map(|(at, _)| *at).collect()
}

/// Returns a tenant that has lent all that it can, with more requests than the remaining memory can hold.
fn tenant_with_lent_memory() -> Tenant {
    let mut tenant = Tenant::new(TimeSharing::Spatial, 40);
    tenant.ask(1);
    tenant.serves();
    tenant.lend_all();
    tenant.ask(6);
    tenant
}

#[test]
fn repeated_shortfall_does_not_restart_wait_for_lost_return() {
    let mut tenant = tenant_with_lent_memory();
    let took_ns = tenant.serves();
    let steps = tenant.world.driver.scheduler().snapshot().counters.steps;
    assert!(took_ns < 3 * BOUND_NS, "{took_ns} ns, {steps} steps");
}

#[test]
fn unresponsive_borrower_is_revoked_again_with_backoff() {
    let mut tenant = tenant_with_lent_memory();
    for _ in 0..20 {
        tenant.serves();
        tenant.ask(6);
    }
    let revoked_at = revocations(&tenant);
    let gaps: Vec<_> = revoked_at.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    assert!(revoked_at.len() > 3 && gaps[0] < BOUND_NS, "within the bound a second time: {gaps:?}");
    assert!(gaps.iter().zip(&gaps[1..]).all(|(gap, next)| next > gap), "{gaps:?}");
}

#[test]
fn overdue_return_makes_lender_borrow_from_another_peer() {
    let mut tenant = tenant_with_lent_memory();
    let other = Peer { index: 2, instance: 3 };
    let live = Some(PeerState { lendable_chunks: 4, ..PeerState::default() });
    tenant.peers = vec![PeerView { peer: other, priority: 0, reachable: true, live }];
    let since = tenant.world.now();
    tenant.serves();
    let asked = tenant
        .messages
        .iter()
        .find(|(_, message)| matches!(message, PeerCommand::Ask { peer, .. } if *peer == other));
    let (at, _) = asked.expect("the other was asked");
    assert!(at.since(since) >= BOUND_NS, "the loan comes first: {at:?}, {since:?}");
    assert!(
        tenant
            .world
            .driver
            .scheduler()
            .negotiator()
            .is_some_and(|negotiator| negotiator.loans_accepted() > 0)
    );
}

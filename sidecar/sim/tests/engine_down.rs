//! A tenant without an engine, among peers: it meets its obligations about memory without one.

use std::sync::{Arc, Mutex};

use sluice_common::random::Rng;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::peers::victim::{PeerState, PeerView};
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::{PeerPort, PeerPortEvent, SliceCommand};
use sluice_scheduler::{Event, Membership, TimeSharing};
use sluice_sim::Simulation;
use sluice_sim::simulation::RequestResult;

use crate::support::{LIMIT, request, setup};

const MS: u64 = 1_000_000;
const LENDER: Peer = Peer { index: 1, instance: 1 };
/// Chunks of the GPU that the peers may hold.
const PEER_CHUNKS: u32 = 24;
const TTL_NS: u64 = 10_000 * MS;
/// Time until the next engine attaches, nanoseconds: longer than a loan, and shorter.
const LONG_NS: u64 = 60_000 * MS;
const SHORT_NS: u64 = 50 * MS;

/// The tenant's messages with their times.
#[derive(Clone, Debug, Default)]
struct RecordingPort(Arc<Mutex<Vec<(Nanos, PeerCommand)>>>);

impl PeerPort for RecordingPort {
    fn send(&mut self, now: Nanos, message: PeerCommand) {
        self.0.lock().unwrap().push((now, message));
    }

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        panic!("all run at once: {call:?}");
    }
}

/// A tenant and its messages.
struct Tenant {
    world: Simulation,
    port: RecordingPort,
}

impl Tenant {
    /// Returns a tenant with more requests than its KV can hold; its engines restart after `restart_ns`.
    fn busy(restart_ns: u64) -> Tenant {
        let mut setup = setup(PolicyName::Oneiros, 4, 30, 1);
        setup.params.share_chunks = setup.geometry.capacity_chunks;
        setup.geometry.capacity_chunks += PEER_CHUNKS;
        setup.config.sharing = TimeSharing::Spatial;
        let me = Peer { index: 0, instance: 1 };
        let terms = NegotiationPolicy { ttl_ns: TTL_NS, min_residence_ns: 0, ..NegotiationPolicy::default() };
        setup.config.membership = Some(Membership { own_peer: me, terms });
        (setup.profile.layer_ns, setup.profile.restart_ns) = (20 * MS, restart_ns);
        let port = RecordingPort::default();
        let world = Simulation::with_peers(Box::new(port.clone()), setup, None);
        let mut world = world.unwrap_or_else(|refused| panic!("{refused}"));
        for id in 1..=6 {
            let mut request = request(id, &mut Rng::new(id));
            request.prompt = (0..90).map(|token| token + 100 * id as u32).collect();
            request.max_tokens = 60;
            world.submit(request);
        }
        Tenant { world, port }
    }

    /// Runs to the first message that `read` accepts.
    fn next_message<T>(&mut self, read: impl Fn(&PeerCommand) -> Option<T>) -> (Nanos, T) {
        loop {
            let more = self.world.tick(LIMIT);
            let messages: Vec<_> = self.port.0.lock().unwrap().drain(..).collect();
            if let Some(found) = messages.iter().find_map(|(at, message)| Some((*at, read(message)?))) {
                return found;
            }
            assert!(
                more,
                "no such message, but {messages:?}, {:?}",
                self.world.driver.scheduler().snapshot()
            );
        }
    }

    fn on_peer_event(&mut self, event: PeerEvent) {
        self.world.driver.push(Event::Peer(PeerPortEvent::Peer(event)));
    }

    /// Lets the peer lend what the tenant asks for.
    fn borrow(&mut self) -> (Nonce, u32) {
        self.next_message(|message| matches!(message, PeerCommand::Survey).then_some(()));
        let zero = Nanos(0);
        let live = PeerState {
            active: false,
            last_used: zero,
            resident_since: zero,
            lendable_chunks: PEER_CHUNKS,
            queue_position: None,
            next_use_ns: None,
        };
        self.on_peer_event(PeerEvent::Survey(vec![PeerView {
            peer: LENDER,
            priority: 0,
            reachable: true,
            live: Some(live),
        }]));
        let (_, (nonce, chunks)) = self.next_message(|message| match message {
            PeerCommand::Ask { nonce, chunks, .. } => Some((*nonce, *chunks)),
            _ => None,
        });
        self.on_peer_event(PeerEvent::Granted { peer: LENDER, nonce, chunks, ttl_ns: TTL_NS });
        while self.borrowed() < chunks {
            assert!(self.world.tick(LIMIT), "the loan comes");
        }
        (nonce, chunks)
    }

    fn borrowed(&self) -> u32 {
        self.world.driver.scheduler().negotiator().unwrap().book().borrowed()
    }

    /// Kills the engine in the middle of a step.
    fn kill_engine(&mut self) {
        let steps = self.world.driver.scheduler().snapshot().counters.steps;
        while self.world.driver.scheduler().snapshot().counters.steps < steps + 2 {
            assert!(self.world.tick(LIMIT), "steps run");
        }
        self.world.run_until(self.world.now().plus(30 * MS));
        self.world.kill_engine();
        self.world.run_until(self.world.now().plus(MS));
        assert!(!self.world.driver.scheduler().snapshot().serving);
    }

    fn returned(&mut self, loan: Nonce) -> (Nanos, u32) {
        self.next_message(|message| match message {
            PeerCommand::Return { nonce, chunks, .. } if *nonce == loan => Some(*chunks),
            _ => None,
        })
    }

    /// Returns the outcomes of all requests.
    fn outcomes(mut self) -> Vec<RequestResult> {
        let ended = |world: &Simulation| world.outcomes.values().all(|outcome| outcome.finish.is_some());
        while !ended(&self.world) {
            assert!(self.world.tick(LIMIT) || ended(&self.world), "all end: {:?}", self.world.outcomes);
        }
        assert_eq!(self.world.driver.compute().wrong_reads(), 0);
        (1..=6).map(|id| self.world.outcomes.remove(&RequestId(id)).unwrap()).collect()
    }
}

fn tokens(outcomes: Vec<RequestResult>) -> Vec<Vec<u32>> {
    outcomes.into_iter().map(|outcome| outcome.tokens).collect()
}

#[test]
fn borrower_without_engine_returns_revoked_loan_and_tokens_are_unchanged() {
    let expected = tokens(Tenant::busy(SHORT_NS).outcomes());
    let mut tenant = Tenant::busy(LONG_NS);
    let (nonce, chunks) = tenant.borrow();
    tenant.kill_engine();
    let asked = tenant.world.now();
    tenant.on_peer_event(PeerEvent::Revoked { peer: LENDER, nonce, chunks });
    let (at, returned) = tenant.returned(nonce);
    assert_eq!(returned, chunks);
    assert!(at.since(asked) <= NegotiationPolicy::default().revoke_bound_ns, "{} ns", at.since(asked));
    assert_eq!(tokens(tenant.outcomes()), expected);
}

#[test]
fn borrower_without_engine_vacates_when_lender_is_silent() {
    let mut tenant = Tenant::busy(LONG_NS);
    let (nonce, chunks) = tenant.borrow();
    let granted = tenant.world.now();
    tenant.kill_engine();
    let (at, returned) = tenant.returned(nonce);
    assert_eq!(returned, chunks);
    let bound_ns = TTL_NS + NegotiationPolicy::default().revoke_bound_ns;
    assert!(at.since(granted) <= bound_ns, "{} ns", at.since(granted));
}

#[test]
fn borrower_without_engine_renews_needed_loan() {
    let mut tenant = Tenant::busy(LONG_NS);
    let (loan, chunks) = tenant.borrow();
    let granted = tenant.world.now();
    tenant.kill_engine();
    let renewal = |message: &PeerCommand| match message {
        PeerCommand::Renew { nonce, .. } if *nonce == loan => Some(()),
        _ => None,
    };
    for _ in 0..3 {
        tenant.next_message(renewal);
        tenant.on_peer_event(PeerEvent::Renewed { peer: LENDER, nonce: loan, ttl_ns: TTL_NS });
        tenant.world.run_until(tenant.world.now().plus(TTL_NS / 4));
    }
    assert!(
        tenant.world.now().since(granted) > TTL_NS && !tenant.world.driver.scheduler().snapshot().serving
    );
    assert_eq!(tenant.borrowed(), chunks);
}

#[test]
fn tenant_without_engine_lends_free_chunks() {
    let mut tenant = Tenant::busy(LONG_NS);
    tenant.kill_engine();
    (1..=6).for_each(|id| tenant.world.cancel(RequestId(id)));
    tenant.world.run_until(tenant.world.now().plus(MS));
    let nonce = Nonce(7);
    tenant.on_peer_event(PeerEvent::Asked { peer: LENDER, nonce, chunks: 2, ttl_ns: TTL_NS });
    let (_, lent) = tenant.next_message(|message| match message {
        PeerCommand::Answer { nonce: Nonce(7), chunks, .. } => Some(*chunks),
        _ => None,
    });
    assert_eq!(lent, 2);
    assert!(!tenant.world.driver.scheduler().snapshot().serving);
}

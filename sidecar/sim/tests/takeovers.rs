//! A tenant that loses its time slice to a peer repeatedly: its steps are abandoned, and its tokens stay the same.

use std::sync::{Arc, Mutex};

use sluice_common::random::Rng;
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand};
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::{PeerPort, PeerPortEvent, SliceCommand};
use sluice_scheduler::{Event, Membership, TimeSharing};
use sluice_sim::Simulation;

use crate::support::{LIMIT, expected, load, setup, with_tier};

const MS: u64 = 1_000_000;
const QUANTUM_NS: u64 = 40 * MS;
const LAYERS: u16 = 6;

/// Records requests and releases of time slices; messages are discarded.
#[derive(Clone, Debug, Default)]
struct RecordingPort(Arc<Mutex<Vec<SliceCommand>>>);

impl PeerPort for RecordingPort {
    fn send(&mut self, _now: Nanos, _message: PeerCommand) {}

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        self.0.lock().unwrap().push(call);
    }
}

/// The order in which the sidecar and its engine notice the loss.
#[derive(Clone, Copy, Debug)]
enum FirstToNotice {
    EngineFirst,
    SidecarFirst,
    /// The step ends before the engine checks.
    SidecarOnly,
}

struct Tenant {
    world: Simulation,
    port: RecordingPort,
    epoch: u64,
    held: bool,
    left_steps: u64,
    takeovers: u64,
}

impl Tenant {
    fn new(policy: PolicyName, seed: u64) -> Tenant {
        let mut setup = with_tier(setup(policy, LAYERS, 24, seed));
        setup.config.sharing = TimeSharing::Temporal(Quantum::new(0, QUANTUM_NS));
        let me = Peer { index: 0, instance: 1 };
        setup.config.membership = Some(Membership { own_peer: me, terms: NegotiationPolicy::default() });
        let port = RecordingPort::default();
        let world = Simulation::with_peers(Box::new(port.clone()), setup, None);
        let world = world.unwrap_or_else(|refused| panic!("{refused}"));
        Tenant { world, port, epoch: 0, held: false, left_steps: 0, takeovers: 0 }
    }

    /// Grants the time slice on request, and checks that only its holder releases it.
    fn grant_slices(&mut self) {
        let calls: Vec<_> = self.port.0.lock().unwrap().drain(..).collect();
        for call in calls {
            match call {
                SliceCommand::Request => {
                    (self.epoch, self.held) = (self.epoch + 1, true);
                    let event = PeerPortEvent::SliceGranted { epoch: self.epoch };
                    self.world.driver.push(Event::Peer(event));
                }
                SliceCommand::Release => {
                    assert!(self.held, "a slice that was taken over is not released again");
                    self.held = false;
                }
            }
        }
    }

    fn take_over(&mut self, finds: FirstToNotice) {
        if !self.held {
            return;
        }
        (self.held, self.takeovers) = (false, self.takeovers + 1);
        let overtaken = Event::Peer(PeerPortEvent::SliceTakenOver { epoch: self.epoch });
        match finds {
            FirstToNotice::EngineFirst => {
                self.left_steps += u64::from(self.world.expire_slice());
                self.world.run_until(self.world.now().plus(1));
                self.world.driver.push(overtaken);
            }
            FirstToNotice::SidecarFirst => {
                self.world.driver.push(overtaken);
                self.left_steps += u64::from(self.world.expire_slice());
            }
            FirstToNotice::SidecarOnly => self.world.driver.push(overtaken),
        }
    }

    fn ended(&self, requests: usize) -> bool {
        let outcomes = &self.world.outcomes;
        outcomes.len() == requests && outcomes.values().all(|outcome| outcome.finish.is_some())
    }
}

/// Runs a load with a takeover every few milliseconds, and returns the number of abandoned steps.
fn tokens_survive(policy: PolicyName, seed: u64) -> (u64, u64) {
    let load = load(16, seed);
    let mut tenant = Tenant::new(policy, seed);
    let mut rng = Rng::new(seed);
    let (mut coming, mut next) = (load.iter().peekable(), 5 * MS);
    while !tenant.ended(load.len()) {
        let now = tenant.world.now();
        assert!(now < LIMIT, "{policy:?}, seed {seed}: {:?}", tenant.world.driver.scheduler().snapshot());
        while let Some((_, request)) = coming.next_if(|(at, _)| *at <= now.0) {
            tenant.world.submit(request.clone());
        }
        if now.0 >= next {
            next = now.0 + rng.between(MS, 60 * MS);
            let finds = [FirstToNotice::EngineFirst, FirstToNotice::SidecarFirst, FirstToNotice::SidecarOnly];
            tenant.take_over(finds[rng.below(3) as usize]);
        }
        tenant.grant_slices();
        tenant.world.run_until(now.plus(MS / 2));
    }
    tenant.world.driver.scheduler().check();
    assert_eq!(tenant.world.driver.compute().wrong_reads(), 0, "{policy:?}, seed {seed}");
    let found = tenant.world.outcomes.into_values().map(|outcome| outcome.tokens);
    let wanted = expected(&load, LAYERS).into_iter().map(|outcome| outcome.tokens);
    assert!(found.eq(wanted), "{policy:?}, seed {seed}");
    (tenant.left_steps, tenant.takeovers)
}

#[test]
fn taken_over_time_slice_changes_no_token_and_fails_no_request() {
    let (mut left_steps, mut takeovers) = (0, 0);
    for policy in PolicyName::ALL {
        for seed in 1..=6 {
            let (left, taken) = tokens_survive(policy, seed);
            (left_steps, takeovers) = (left_steps + left, takeovers + taken);
        }
    }
    assert!(left_steps > 40 && takeovers > left_steps, "{left_steps} of {takeovers}: the test reaches steps");
}

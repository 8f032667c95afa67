//! A whole tenant in virtual time: memory manager, scheduler, simulated backend, and the loop that advances the clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_policy::config_error::ConfigError;
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Params;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanRequest};
use sluice_ports::peers::{NoPeers, PeerPort};
use sluice_ports::placement_planner::PlacementPlanner;
use sluice_scheduler::driver::Ports;
use sluice_scheduler::journal::Recorder;
use sluice_scheduler::{Config, Driver, Event, Finish, RejectReason, Request, Scheduler, SchedulerOutput};

use crate::compute::SimCompute;
use crate::device::{Profile, SharedDevice, SimDevice};
use crate::memory::SimMemory;
use crate::placement_planner::TimedPlanner;

/// Virtual time of a plan, nanoseconds: the limit for 16 requests and 80 layers.
pub const PLAN_NS: u64 = 1_000_000;

/// The result of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestResult {
    /// Sampled tokens.
    pub tokens: Vec<u32>,
    /// How the request ended.
    pub finish: Option<Finish>,
    /// Why the scheduler refused the request.
    pub refusal: Option<RejectReason>,
    /// Number of preemptions.
    pub preemptions: u32,
}

/// Options of a simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Scheduler options.
    pub config: Config,
    /// Policy options.
    pub params: Params,
    /// Sizes of the model and the memory.
    pub geometry: Geometry,
    /// Speeds of the device.
    pub profile: Profile,
    /// Size of the vocabulary, tokens.
    pub vocab: u32,
    /// Seed of the faults.
    pub seed: u64,
}

/// A planner that records its requests.
#[derive(Debug)]
struct RecordingPlanner {
    planner: TimedPlanner,
    plan_requests: Arc<Mutex<Vec<PlanRequest>>>,
}

impl PlacementPlanner for RecordingPlanner {
    fn submit(&mut self, now: Nanos, request: PlanRequest) {
        self.plan_requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        self.planner.submit(now, request);
    }

    fn poll(&mut self, now: Nanos) -> Option<PlanAnswer> {
        self.planner.poll(now)
    }

    fn next_due(&self) -> Option<Nanos> {
        self.planner.next_due()
    }
}

/// A simulated tenant.
#[derive(Debug)]
pub struct Simulation {
    /// Scheduler and backend.
    pub driver: Driver<SimMemory, SimCompute>,
    /// The device, for planting faults and for inspection.
    pub device: SharedDevice,
    /// Results of all requests so far.
    pub outcomes: BTreeMap<RequestId, RequestResult>,
    /// Whether the scheduler's invariants are checked after every event; a broken one panics.
    pub checked: bool,
    plan_requests: Arc<Mutex<Vec<PlanRequest>>>,
    now: Nanos,
}

impl Simulation {
    /// Creates a tenant that starts to load at time 0.
    ///
    /// # Errors
    /// If the policy refuses the setup.
    pub fn new(setup: Setup, journal: Option<Recorder>) -> Result<Self, ConfigError> {
        Simulation::with_peers(Box::new(NoPeers), setup, journal)
    }

    /// Creates a tenant with peers on its GPU.
    ///
    /// # Errors
    /// If the policy refuses the setup.
    pub fn with_peers(
        peers: Box<dyn PeerPort>,
        setup: Setup,
        journal: Option<Recorder>,
    ) -> Result<Self, ConfigError> {
        let host_blocks = setup.params.host_kv_bytes / setup.geometry.layer_block_bytes.max(1);
        let host_blocks = u32::try_from(host_blocks).unwrap_or(u32::MAX);
        let manager = MemoryManager::new(setup.params, setup.geometry.clone())?;
        let device = SimDevice::with_host_tier(setup.geometry, setup.profile, setup.seed, host_blocks);
        let memory = SimMemory::new(device.clone());
        let compute = SimCompute::new(device.clone(), setup.vocab);
        let core = Scheduler::new(setup.config, manager);
        let asked = Arc::default();
        let planner = RecordingPlanner {
            planner: TimedPlanner::with_latency(PLAN_NS),
            plan_requests: Arc::clone(&asked),
        };
        let around = Ports { peers, planner: Box::new(planner) };
        let driver = Driver::start(around, Nanos(0), core, memory, compute, journal);
        Ok(Simulation {
            driver,
            device,
            outcomes: BTreeMap::new(),
            checked: true,
            plan_requests: asked,
            now: Nanos(0),
        })
    }

    /// Returns all plan requests, oldest first.
    pub fn plan_requests(&self) -> Vec<PlanRequest> {
        self.plan_requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Submits a request now.
    pub fn submit(&mut self, request: Request) {
        self.outcomes.insert(request.id, RequestResult::default());
        self.driver.push(Event::Submit(request));
    }

    /// Cancels a request now.
    pub fn cancel(&mut self, id: RequestId) {
        self.driver.push(Event::Cancel(id));
    }

    /// Kills the engine now.
    pub fn kill_engine(&mut self) {
        let now = self.now;
        self.driver.compute().kill(now);
    }

    /// Makes the engine abandon its step because its time slice has ended. Returns whether a step was running.
    pub fn expire_slice(&mut self) -> bool {
        let now = self.now;
        self.driver.compute().expire_slice(now)
    }

    /// Advances to the next event, at most to `limit`. Returns `false` if nothing is due before it.
    pub fn tick(&mut self, limit: Nanos) -> bool {
        let due = self.driver.step(self.now);
        self.process_notices();
        if self.checked {
            self.driver.scheduler().check();
        }
        match due.filter(|due| *due <= limit) {
            Some(due) => {
                self.now = self.now.max(due);
                true
            }
            None => false,
        }
    }

    /// Runs until `limit`.
    pub fn run_until(&mut self, limit: Nanos) {
        while self.tick(limit) {}
        self.now = self.now.max(limit);
    }

    /// Runs until every request has ended and memory is at rest. Returns `false` if `limit` is reached first.
    pub fn run_until_idle(&mut self, limit: Nanos) -> bool {
        loop {
            let more = self.tick(limit);
            let ended = self.outcomes.values().all(|o| o.finish.is_some() || o.refusal.is_some());
            if ended && (!more || self.driver.scheduler().manager().is_idle()) {
                return true;
            }
            if !more {
                return false;
            }
        }
    }

    fn process_notices(&mut self) {
        for notice in self.driver.take_outputs() {
            match notice {
                SchedulerOutput::Token { request, token, .. } => self.outcome(request).tokens.push(token),
                SchedulerOutput::Finished { request, finish } => self.outcome(request).finish = Some(finish),
                SchedulerOutput::Refused { request, refusal } => {
                    self.outcome(request).refusal = Some(refusal)
                }
                SchedulerOutput::Preempted { request, .. } => self.outcome(request).preemptions += 1,
                SchedulerOutput::Admitted { .. }
                | SchedulerOutput::PolicyRefused { .. }
                | SchedulerOutput::BoundsRefused { .. }
                | SchedulerOutput::Waited(_)
                | SchedulerOutput::Planned { .. }
                | SchedulerOutput::Step(_) => {}
            }
        }
    }

    fn outcome(&mut self, request: RequestId) -> &mut RequestResult {
        self.outcomes.entry(request).or_default()
    }
}

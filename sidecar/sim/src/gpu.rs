//! Several tenants on one GPU in virtual time. Each has the production scheduler and policy; they share one ledger of
//! bytes, one link to the host, one queue for time slices, and a network that delays messages.
//!
//! All events are in one time order, so the same options and seed give the same run, bit for bit.

pub mod network;
pub mod slice_queue;
pub mod tenant;

mod delivery;
mod lifecycle;
mod share_changes;

use std::cell::RefCell;
use std::rc::Rc;

use sluice_common::random::Rng;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{Quantum, SliceOrder};
use sluice_ports::peers::SliceCommand;
use sluice_scheduler::{Event, Request};

use crate::device::{Detail, SimFaults};
use crate::gpu_ledger::{SharedLedger, SimGpuLedger};
use crate::machine::{Machine, SharedMachine};
use network::{LinkDelays, SimNetwork};
use slice_queue::SliceQueue;
use tenant::{Instance, OutMessage, RequestOutcome, SimTenant, TenantSetup};

/// Interval at which a tenant polls the ledger, nanoseconds.
const SURVEY_INTERVAL_NS: u64 = 25_000_000;

/// How the tenants share the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuSharing {
    /// One tenant at a time.
    Temporal {
        /// Shortest and longest time slice.
        quantum: Quantum,
        /// Order of the waiting tenants.
        order: SliceOrder,
    },
    /// All at once: while n steps run, each has 1/n of the arithmetic and of the memory bandwidth.
    Spatial,
    /// Each tenant has a fixed partition of memory and compute. The link is shared.
    Isolated,
}

/// Options of a GPU.
#[derive(Clone, Debug)]
pub struct GpuSetup {
    /// How the tenants share it.
    pub sharing: GpuSharing,
    /// Chunks of device memory.
    pub capacity_chunks: u32,
    /// Delays and losses of messages.
    pub link_delays: LinkDelays,
    /// Level of detail.
    pub detail: Detail,
    /// Time from the exit of a tenant to its restart, nanoseconds.
    pub restart_ns: u64,
    /// Whether instances record journals.
    pub recorded: bool,
    /// Seed of all randomness.
    pub seed: u64,
}

/// A simulated GPU.
#[derive(Debug)]
pub struct Gpu {
    setup: GpuSetup,
    /// Tenants of the GPU.
    pub tenants: Vec<SimTenant>,
    /// Chunks that each tenant holds.
    pub ledger: SharedLedger,
    /// Link and processors.
    pub machine: SharedMachine,
    slice_queue: SliceQueue,
    /// Messages in transit.
    pub network: SimNetwork,
    /// Faults of the devices of future instances.
    pub faults: SimFaults,
    /// Whether the invariants of a tenant are checked after each of its events; slow.
    pub checked: bool,
    now: Nanos,
    instances_started: u64,
    share_reductions: u64,
    rng: Rng,
}

impl Gpu {
    /// Creates a GPU whose tenants start to load at time 0.
    ///
    /// # Errors
    /// The name of a refused tenant, and why the policy refuses it.
    pub fn new(setup: GpuSetup, tenants: Vec<TenantSetup>) -> Result<Gpu, (String, String)> {
        let machine = Machine::with_shared_compute(setup.sharing == GpuSharing::Spatial);
        let order = match setup.sharing {
            GpuSharing::Temporal { order, .. } => order,
            _ => SliceOrder::default(),
        };
        let keeps_tokens = setup.detail == Detail::Fingerprints;
        let mut gpu = Gpu {
            tenants: tenants.into_iter().map(|tenant| SimTenant::new(tenant, keeps_tokens)).collect(),
            ledger: Rc::new(RefCell::new(SimGpuLedger::new(setup.capacity_chunks))),
            machine: Rc::new(RefCell::new(machine)),
            slice_queue: SliceQueue::new(order),
            network: SimNetwork::new(setup.link_delays, setup.seed ^ 0x3a11),
            faults: SimFaults::default(),
            checked: setup.detail == Detail::Fingerprints,
            now: Nanos(0),
            instances_started: 0,
            share_reductions: 0,
            rng: Rng::new(setup.seed),
            setup,
        };
        for at in 0..gpu.tenants.len() {
            let started = gpu.start_instance(at);
            started.map_err(|refused| (gpu.tenants[at].setup.name.clone(), refused.to_string()))?;
        }
        Ok(gpu)
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules a request for time `at`. Requests of a tenant must be scheduled in time order.
    pub fn submit_at(&mut self, tenant: usize, at: Nanos, request: Request) {
        self.tenants[tenant].arrivals.push_back((at, request));
    }

    /// Returns the number of requests of all tenants that have arrived and not ended.
    pub fn open(&self) -> usize {
        self.tenants.iter().map(SimTenant::open).sum()
    }

    /// Whether every request has arrived and ended.
    pub fn is_done(&self) -> bool {
        self.tenants.iter().all(SimTenant::is_done)
    }

    /// Returns the number of time slices granted so far.
    pub fn granted_slices(&self) -> u64 {
        self.slice_queue.granted()
    }

    /// Runs until every request has ended. Returns `false` if `limit` is reached first, or if no event is left.
    pub fn run_until_done(&mut self, limit: Nanos) -> bool {
        while !self.is_done() {
            if !self.tick(limit) {
                return false;
            }
        }
        true
    }

    /// Runs until `limit`.
    pub fn run_until(&mut self, limit: Nanos) {
        while self.tick(limit) {}
        self.now = self.now.max(limit);
    }

    /// Processes the next event time, at most `limit`. Returns `false` if there is none.
    pub fn tick(&mut self, limit: Nanos) -> bool {
        let Some(due) = self.next_due().filter(|due| *due <= limit) else { return false };
        self.now = self.now.max(due);
        while let Some((to, post)) = self.network.next(self.now) {
            self.deliver(to, post);
        }
        for at in 0..self.tenants.len() {
            self.restart_due(at);
            self.admit_arrivals(at);
            self.poll_ledger(at);
            let wakes = self.tenants[at].instance.as_ref().and_then(Instance::next_wake_at);
            if wakes.is_some_and(|wakes| wakes <= self.now) {
                self.step(at);
            }
        }
        self.apply_shares();
        true
    }

    fn next_due(&self) -> Option<Nanos> {
        let tenants = self.tenants.iter().flat_map(|tenant| self.due_of(tenant));
        tenants.chain(self.network.next_due()).min()
    }

    fn due_of(&self, tenant: &SimTenant) -> impl Iterator<Item = Nanos> {
        let Some(instance) = &tenant.instance else {
            return [tenant.restart_at, None, None].into_iter().flatten();
        };
        let arrival = tenant.arrivals.front().map(|(at, _)| (*at).max(instance.stopped_until));
        let looks = (!self.ledger.borrow().has_no_transfers() || self.exit_count() > 0)
            .then_some(instance.next_survey_at.max(instance.stopped_until));
        [instance.next_wake_at(), arrival, looks].into_iter().flatten()
    }

    /// Returns the number of instances that have exited.
    fn exit_count(&self) -> u64 {
        let living = self.tenants.iter().filter(|tenant| tenant.instance.is_some()).count() as u64;
        self.instances_started - living
    }

    fn admit_arrivals(&mut self, at: usize) {
        let (tenant, now) = (&mut self.tenants[at], self.now);
        let Some(instance) = tenant.instance.as_mut().filter(|instance| instance.stopped_until <= now) else {
            return;
        };
        while let Some((at, request)) = tenant.arrivals.pop_front_if(|(at, _)| *at <= now) {
            let id = request.id;
            instance.due = Some(now);
            instance.driver.push(Event::Submit(request));
            tenant.outcomes.insert(id, RequestOutcome { arrived: at, ..RequestOutcome::default() });
            tenant.open += 1;
        }
    }

    /// Runs a step of the tenant's driver and sends its messages.
    fn step(&mut self, at: usize) {
        let (tenant, now, checked) = (&mut self.tenants[at], self.now, self.checked);
        let Some(instance) = &mut tenant.instance else { return };
        instance.due = instance.driver.step(now);
        if checked {
            instance.driver.scheduler().check();
        }
        let (me, messages) = (instance.me, instance.outbox.take());
        tenant.process_notices(now);
        tenant.observe_memory(now);
        messages.into_iter().for_each(|message| self.dispatch(at, me, message));
    }

    fn dispatch(&mut self, at: usize, me: Peer, message: OutMessage) {
        match message {
            OutMessage::Peer(message) => self.send(me, message),
            OutMessage::Slice(SliceCommand::Request) => {
                self.slice_queue.enqueue(me, self.tenants[at].setup.terms.priority)
            }
            OutMessage::Slice(SliceCommand::Release) => self.slice_queue.release(me),
        }
        self.grant_next_slice();
    }

    /// Kills the engine of a tenant now.
    pub fn kill_engine(&mut self, at: usize) {
        let now = self.now;
        if let Some(instance) = &mut self.tenants[at].instance {
            instance.driver.compute().kill(now);
            instance.due = Some(now);
        }
    }

    /// Cancels a request.
    pub fn cancel(&mut self, at: usize, request: RequestId) {
        self.push(at, Event::Cancel(request));
    }

    /// Pushes an event to a tenant now.
    pub fn push(&mut self, at: usize, event: Event) {
        let now = self.now;
        if let Some(instance) = &mut self.tenants[at].instance {
            instance.driver.push(event);
            instance.due = Some(now);
        }
    }

    /// Stops a tenant's process for `for_ns`: messages, arrivals and completions wait.
    pub fn stop(&mut self, at: usize, for_ns: u64) {
        let until = self.now.plus(for_ns);
        if let Some(instance) = &mut self.tenants[at].instance {
            instance.stopped_until = instance.stopped_until.max(until);
        }
    }
}

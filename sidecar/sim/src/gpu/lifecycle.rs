//! Starts and stops the instances of tenants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sluice_policy::config_error::ConfigError;
use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::{Bounds, Params};
use sluice_policy::peers::Peer;
use sluice_scheduler::driver::Ports;
use sluice_scheduler::journal::Recorder;
use sluice_scheduler::{Driver, Membership, Scheduler};

use super::tenant::{Instance, JournalBuffer, PeerOutbox, SimTenant, TenantSetup, TenantStats};
use super::{Gpu, GpuSharing, SURVEY_INTERVAL_NS};
use crate::compute::SimCompute;
use crate::device::{Detail, SharedDevice, SimDevice};
use crate::gpu_ledger::Quota;
use crate::memory::SimMemory;
use crate::placement_planner::TimedPlanner;
use crate::simulation::PLAN_NS;

impl SimTenant {
    pub(super) fn new(setup: TenantSetup, keeps_tokens: bool) -> SimTenant {
        let Params { share_chunks, remap_cap_permille, .. } = setup.params;
        let share_chunks = share_chunks.min(setup.geometry.capacity_chunks);
        SimTenant {
            bounds: Bounds { share_chunks, remap_cap_permille },
            has_sent_bounds: true,
            setup,
            instance: None,
            restart_at: None,
            arrivals: VecDeque::new(),
            outcomes: BTreeMap::new(),
            open: 0,
            should_keep_tokens: keeps_tokens,
            stats: TenantStats::default(),
            plan_gaps: Vec::new(),
        }
    }
}

impl Gpu {
    /// Starts a tenant's process.
    ///
    /// # Errors
    /// If the policy refuses the setup.
    pub(super) fn start_instance(&mut self, at: usize) -> Result<(), ConfigError> {
        self.instances_started += 1;
        let me = Peer { index: at as u32, instance: self.instances_started };
        let setup = self.restart_setup(at);
        let manager = MemoryManager::new(setup.params.clone(), setup.geometry.clone())?;
        let device = self.new_device(&setup, me);
        let memory = SimMemory::new(device.clone());
        let compute = SimCompute::with_start_time(device.clone(), setup.vocab, self.now);
        let outbox = PeerOutbox::default();
        let journal = self.setup.recorded.then(JournalBuffer::default);
        let recorder = journal.clone().map(|journal| Recorder::new(Box::new(journal)));
        let core = Scheduler::new(self.config(&setup, me), manager);
        let around =
            Ports { peers: Box::new(outbox.clone()), planner: Box::new(TimedPlanner::with_latency(PLAN_NS)) };
        let driver = Driver::start(around, self.now, core, memory, compute, recorder);
        let instance = Instance {
            me,
            driver,
            device,
            outbox,
            journal,
            due: Some(self.now),
            next_survey_at: self.now.plus(SURVEY_INTERVAL_NS),
            known_peers: self.live_peers(),
            stopped_until: Nanos(0),
            last_used: self.now,
            absent_layers: 0,
            resident_since: None,
        };
        (self.tenants[at].instance, self.tenants[at].has_sent_bounds) = (Some(instance), false);
        Ok(())
    }

    fn new_device(&mut self, setup: &TenantSetup, me: Peer) -> SharedDevice {
        // `Detail::Times` does not check host blocks, so it needs none.
        let counts = self.setup.detail == Detail::Fingerprints;
        let layer_blocks =
            if counts { setup.params.host_kv_bytes / setup.geometry.layer_block_bytes.max(1) } else { 0 };
        let layer_blocks = u32::try_from(layer_blocks).unwrap_or(u32::MAX);
        let device = SimDevice::with_host_tier(
            setup.geometry.clone(),
            setup.profile,
            self.rng.next_u64(),
            layer_blocks,
        );
        self.ledger.borrow_mut().join(me.instance);
        {
            let mut device = device.borrow_mut();
            device.quota = Some(Quota { ledger: self.ledger.clone(), me });
            device.machine = self.machine.clone();
            device.detail = self.setup.detail;
            device.faults = self.faults;
        }
        device
    }

    /// Returns the scheduler's options, with the tenant's membership among its peers.
    fn config(&self, setup: &TenantSetup, me: Peer) -> sluice_scheduler::Config {
        let member = Membership { own_peer: me, terms: setup.terms.clone() };
        let (sharing, membership) = match self.setup.sharing {
            GpuSharing::Temporal { quantum, .. } => {
                (sluice_scheduler::TimeSharing::Temporal(quantum), Some(member))
            }
            GpuSharing::Spatial => (sluice_scheduler::TimeSharing::Spatial, Some(member)),
            GpuSharing::Isolated => (sluice_scheduler::TimeSharing::Exclusive, None),
        };
        sluice_scheduler::Config { sharing, membership, ..setup.config.clone() }
    }

    /// Stops a tenant's process and its engine: frees its memory, closes its streams, and schedules its restart.
    pub fn stop_instance(&mut self, at: usize) {
        let Some(mut instance) = self.tenants[at].instance.take() else { return };
        // Frees the processors of a running step.
        instance.driver.compute().kill(self.now);
        self.ledger.borrow_mut().remove(instance.me.instance);
        self.slice_queue.remove(instance.me);
        self.grant_next_slice();
        self.tenants[at].disconnect_clients();
        self.tenants[at].restart_at = Some(self.now.plus(self.setup.restart_ns));
    }

    pub(super) fn restart_due(&mut self, at: usize) {
        if self.tenants[at].restart_at.is_some_and(|at| at <= self.now) && !self.can_apply_share(at) {
            self.tenants[at].restart_at = Some(self.now.plus(self.setup.restart_ns.max(1)));
        }
        if self.tenants[at].restart_at.take_if(|at| *at <= self.now).is_some() {
            self.start_instance(at).expect("what was accepted once is accepted again");
        }
    }

    pub(super) fn live_peers(&self) -> BTreeSet<Peer> {
        self.tenants.iter().filter_map(|tenant| Some(tenant.instance.as_ref()?.me)).collect()
    }
}

//! Lives of tenants: how they begin and end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sluice_policy::config_error::ConfigError;
use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::{Bounds, Params};
use sluice_policy::peers::Peer;
use sluice_ports::planner::TimedPlanner;
use sluice_scheduler::driver::Ports;
use sluice_scheduler::journal::Recorder;
use sluice_scheduler::{Driver, Membership, Scheduler};

use super::seat::{Journal, Life, Mouth, Seat, Tally, TenantSetup};
use super::{Gpu, LOOK_NS, Sharing};
use crate::compute::SimCompute;
use crate::device::{Detail, Device, Shared};
use crate::ledger::Quota;
use crate::memory::SimMemory;
use crate::world::PLAN_NS;

impl Seat {
    pub(super) fn new(setup: TenantSetup, keeps_tokens: bool) -> Seat {
        let Params { share_chunks, remap_cap_permille, .. } = setup.params;
        let share_chunks = share_chunks.min(setup.geometry.capacity_chunks);
        Seat {
            dealt: Bounds { share_chunks, remap_cap_permille },
            told: true,
            setup,
            life: None,
            reborn_at: None,
            arrivals: VecDeque::new(),
            fates: BTreeMap::new(),
            open: 0,
            keeps_tokens,
            tally: Tally::default(),
            plan_gaps: Vec::new(),
        }
    }
}

impl Gpu {
    /// A tenant's process starts.
    ///
    /// # Errors
    /// What the policy refuses.
    pub(super) fn begin_life(&mut self, at: usize) -> Result<(), ConfigError> {
        self.lives += 1;
        let me = Peer { index: at as u32, instance: self.lives };
        let setup = self.born_with(at);
        let manager = MemoryManager::new(setup.params.clone(), setup.geometry.clone())?;
        let device = self.new_device(&setup, me);
        let memory = SimMemory::new(device.clone());
        let compute = SimCompute::starting(device.clone(), setup.vocab, self.now);
        let mouth = Mouth::default();
        let journal = self.setup.recorded.then(Journal::default);
        let recorder = journal.clone().map(|journal| Recorder::new(Box::new(journal)));
        let core = Scheduler::new(self.config(&setup, me), manager);
        let around = Ports {
            neighbourhood: Box::new(mouth.clone()),
            planner: Box::new(TimedPlanner::taking(PLAN_NS)),
        };
        let driver = Driver::start(around, self.now, core, memory, compute, recorder);
        let life = Life {
            me,
            driver,
            device,
            mouth,
            journal,
            due: Some(self.now),
            looks_at: self.now.plus(LOOK_NS),
            known: self.living(),
            stopped_until: Nanos(0),
            last_used: self.now,
            away: 0,
            resident_since: None,
        };
        (self.seats[at].life, self.seats[at].told) = (Some(life), false);
        Ok(())
    }

    fn new_device(&mut self, setup: &TenantSetup, me: Peer) -> Shared {
        // What orders say of host blocks is taken as it is where only times are simulated.
        let counts = self.setup.detail == Detail::Fingerprints;
        let blocks = if counts { setup.params.host_kv_bytes / setup.geometry.block_bytes.max(1) } else { 0 };
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let device = Device::with_host_tier(setup.geometry.clone(), setup.profile, self.rng.word(), blocks);
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

    /// The scheduler's limits with the tenant's place among its neighbours.
    fn config(&self, setup: &TenantSetup, me: Peer) -> sluice_scheduler::Config {
        let member = Membership { me, terms: setup.terms.clone() };
        let (sharing, neighbours) = match self.setup.sharing {
            Sharing::Temporal { quantum, .. } => (sluice_scheduler::Sharing::Temporal(quantum), Some(member)),
            Sharing::Spatial => (sluice_scheduler::Sharing::Spatial, Some(member)),
            Sharing::Isolated => (sluice_scheduler::Sharing::Exclusive, None),
        };
        sluice_scheduler::Config { sharing, neighbours, ..setup.config.clone() }
    }

    /// A tenant's process dies with its engine: its memory is free, its streams are closed. Its next life begins later.
    pub fn end_life(&mut self, at: usize) {
        let Some(mut life) = self.seats[at].life.take() else { return };
        // A step that ran no longer does.
        life.driver.compute().kill(self.now);
        self.ledger.borrow_mut().die(life.me.instance);
        self.line.leave(life.me);
        self.settle_line();
        self.seats[at].break_off();
        self.seats[at].reborn_at = Some(self.now.plus(self.setup.rebirth_ns));
    }

    pub(super) fn be_reborn(&mut self, at: usize) {
        if self.seats[at].reborn_at.is_some_and(|at| at <= self.now) && !self.has_room(at) {
            self.seats[at].reborn_at = Some(self.now.plus(self.setup.rebirth_ns.max(1)));
        }
        if self.seats[at].reborn_at.take_if(|at| *at <= self.now).is_some() {
            self.begin_life(at).expect("what was accepted once is accepted again");
        }
    }

    pub(super) fn living(&self) -> BTreeSet<Peer> {
        self.seats.iter().filter_map(|seat| Some(seat.life.as_ref()?.me)).collect()
    }
}

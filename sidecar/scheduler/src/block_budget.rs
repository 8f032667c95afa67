//! Memory for an engine that schedules its requests by itself, such as vLLM: it gets a budget of KV blocks.
//!
//! [`BudgetScheduler`] is a pure state machine next to [`crate::Scheduler`]: the same memory manager, policies, loans,
//! time slices and sleep, without requests. Between two passes it *holds* the engine, finds out which KV extents the
//! engine's requests use, moves memory as at a step boundary, grants or withdraws extents, and lets the engine go on.
//! Layers that move are leased pass by pass, as the engine begins them.
//!
//! [`BudgetDriver`] connects it to its ports.
//!
//! | the engine | reports | gets |
//! |---|---|---|
//! | attaches | [`EngineReport::Attached`](sluice_ports::block_budget::EngineReport::Attached) | its guaranteed extents in [`EngineOrder::Resume`](sluice_ports::block_budget::EngineOrder::Resume) |
//! | lacks blocks | [`EngineReport::Demand`](sluice_ports::block_budget::EngineReport::Demand) | [`EngineOrder::Hold`](sluice_ports::block_budget::EngineOrder::Hold), then more extents |
//! | is held | [`EngineReport::Held`](sluice_ports::block_budget::EngineReport::Held) | perhaps [`EngineOrder::Retire`](sluice_ports::block_budget::EngineOrder::Retire), then `Resume` |
//! | begins a pass while layers move | [`EngineReport::PassBegun`](sluice_ports::block_budget::EngineReport::PassBegun) | [`EngineOrder::Lease`](sluice_ports::block_budget::EngineOrder::Lease) |
//!
//! What a policy needs of requests (placement of each request's KV, pauses, deadlines) is not offered: the engine alone
//! knows its requests.

mod boundary;
mod driver;
mod event;
mod extents;
mod report;
mod retirement;
mod slice;
#[cfg(test)]
mod tests;

use std::hash::Hash;

use sluice_common::hash::fnv1a;
use sluice_policy::action::Action;
use sluice_policy::digest::Digest;
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::LoanNegotiator;
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::peers::wait_time::WaitSpan;
use sluice_ports::block_budget::{EngineDemand, EngineKv};

use crate::config::{Membership, TimeSharing};
use crate::event::Command;
use crate::peer_loans::PeerLoans;
use crate::time_slice::TimeSlice;
pub use driver::BudgetDriver;
pub use event::{BudgetCommand, BudgetEvent};
use extents::Extents;
use retirement::Retirement;

/// How often an engine is held while memory may move although nothing was reported, nanoseconds.
const HOLD_INTERVAL_NS: u64 = 100_000_000;

/// What the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None is attached.
    Absent,
    /// Its worker loads: once all layers have their chunks, nothing moves.
    Starting,
    /// Passes may run.
    Running,
    /// Passes may run until it reports that it is held.
    Holding,
    /// No pass runs.
    Held,
    /// No pass runs, and it has been asked for extents.
    Retiring,
    /// It was ordered to end. Only its loss is awaited.
    Ending,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetCounters {
    /// Passes that were leased or measured.
    pub passes: u64,
    /// Times that the engine was held.
    pub holds: u64,
    /// Requests that it preempted to give extents back.
    pub preemptions: u64,
    /// Extents whose KV was lost in a failed copy.
    pub extents_lost: u64,
    /// Engines that were lost.
    pub engine_losses: u64,
    /// Time slices granted.
    pub slices: u64,
    /// Time that time slices were held, nanoseconds.
    pub slice_held_ns: u64,
    /// Time from requesting time slices to their grant, nanoseconds.
    pub slice_wait_ns: u64,
}

/// Gives an engine its block budget, between passes.
#[derive(Debug)]
pub struct BudgetScheduler {
    manager: MemoryManager,
    loans: PeerLoans,
    slice: TimeSlice,
    phase: Phase,
    extents: Extents,
    kv: Option<EngineKv>,
    /// The engine has no extent yet. It gets its first ones even without a time slice: it cannot take requests before.
    is_new: bool,
    demand: EngineDemand,
    /// A pass was leased and has not ended.
    pass_runs: bool,
    /// The engine waits for leases of layers.
    waits_for_leases: bool,
    /// Something may have become due: the engine is held for it.
    hold_due: bool,
    held_at: Nanos,
    retirement: Retirement,
    /// The order to sleep in force until an explicit wake-up.
    sleep_requested: bool,
    /// The tenant is to sleep at the next boundary, unless it has requests by then.
    sleeps_if_idle: bool,
    /// The last hold gave less than was wanted: further wants of the engine alone do not hold it again.
    is_starved: bool,
    counters: BudgetCounters,
    waits: Vec<WaitSpan>,
    commands: Vec<BudgetCommand>,
    actions: Vec<Action>,
}

impl BudgetScheduler {
    /// Returns a scheduler without an engine. [`BudgetScheduler::start`] loads the tenant.
    pub fn new(sharing: TimeSharing, membership: Option<Membership>, mut manager: MemoryManager) -> Self {
        BudgetScheduler {
            loans: PeerLoans::new(membership, &mut manager),
            manager,
            slice: TimeSlice::new(sharing),
            phase: Phase::Absent,
            extents: Extents::default(),
            kv: None,
            is_new: false,
            demand: EngineDemand::default(),
            pass_runs: false,
            waits_for_leases: false,
            hold_due: false,
            held_at: Nanos(0),
            retirement: Retirement::default(),
            sleep_requested: false,
            sleeps_if_idle: false,
            is_starved: false,
            counters: BudgetCounters::default(),
            waits: Vec::new(),
            commands: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Starts to load the tenant's memory.
    pub fn start(&mut self, now: Nanos) {
        self.manager.start(now, &mut self.actions);
        self.flush();
    }

    /// Handles one event. `now` never decreases.
    pub fn handle(&mut self, now: Nanos, event: BudgetEvent) {
        match event {
            BudgetEvent::Memory(completion) => self.manager.complete(now, &completion, &mut self.actions),
            BudgetEvent::Engine(report) => self.on_report(now, report),
            BudgetEvent::Peer(event) => self.on_peer_event(now, event),
            BudgetEvent::Sleep(order) => self.on_sleep_order(order),
            BudgetEvent::Policy(policy) => self.hold_due |= self.manager.set_policy(policy).is_ok(),
            BudgetEvent::Bounds(bounds) => self.hold_due |= self.manager.set_bounds(bounds).is_ok(),
            BudgetEvent::Tick => self.on_tick(now),
        }
        self.flush();
        self.lose_extents();
        // All layers are there: the engine need not wait any more.
        self.hold_due |= self.waits_for_leases && self.is_resident();
        if matches!(self.phase, Phase::Absent | Phase::Held) || self.lacks_layers() {
            self.at_boundary(now);
        }
        if self.phase == Phase::Running && (self.hold_due || self.slice_ends(now)) {
            self.hold();
        }
        self.flush();
        self.waits.extend(self.loans.observe(
            now,
            &self.manager,
            (self.counters.passes, self.demand.has_requests()),
        ));
    }

    /// Returns the commands since the last call, in order.
    pub fn take_commands(&mut self) -> Vec<BudgetCommand> {
        core::mem::take(&mut self.commands)
    }

    /// Returns the waits for peers that ended since the last call.
    pub fn take_waits(&mut self) -> Vec<WaitSpan> {
        core::mem::take(&mut self.waits)
    }

    /// Returns the memory manager.
    pub fn manager(&self) -> &MemoryManager {
        &self.manager
    }

    /// Returns the loan negotiator; `None` without peers.
    pub fn negotiator(&self) -> Option<&LoanNegotiator> {
        self.loans.negotiator()
    }

    /// Returns the predicted time until the tenant is used next, nanoseconds.
    pub fn next_use_ns(&self, now: Nanos) -> Option<u64> {
        self.loans.next_use_ns(now)
    }

    /// Returns the totals since the start.
    pub fn counters(&self) -> &BudgetCounters {
        &self.counters
    }

    /// Returns what the engine's requests lacked at its last report.
    pub fn demand(&self) -> EngineDemand {
        self.demand
    }

    /// KV blocks of the engine that have memory.
    pub fn granted_blocks(&self) -> u32 {
        self.extents.granted() * self.kv.map_or(0, |kv| kv.blocks_per_extent)
    }

    /// Whether an engine is attached.
    pub fn has_engine(&self) -> bool {
        self.phase != Phase::Absent
    }

    /// Whether time alone can change the state.
    pub fn needs_ticks(&self) -> bool {
        let waits = matches!(self.phase, Phase::Held | Phase::Starting);
        self.manager.loans().missing_floor_chunks().is_some() || waits || self.may_move()
    }

    /// Checks every invariant; panics with a message if one is broken.
    pub fn check(&self) {
        self.manager.check();
        self.loans.check(&self.manager);
    }

    /// Returns a fingerprint of the state that affects decisions: equal runs have equal digests.
    pub fn digest(&self) -> u64 {
        let EngineDemand { wanted_blocks, waiting, running } = self.demand;
        let mut words = vec![
            self.manager.digest(),
            self.loans.digest(),
            self.slice.held_epoch().unwrap_or(0),
            self.phase as u64 | u64::from(self.hold_due) << 8 | u64::from(self.sleep_requested) << 9,
            u64::from(wanted_blocks) << 32 | u64::from(waiting) << 16 | u64::from(running),
            self.counters.passes,
        ];
        words.extend(self.extents.digest_words());
        fnv1a(words)
    }

    /// Returns a fingerprint of the commands that were not taken yet, in order.
    pub fn commands_digest(&self) -> u64 {
        let mut digest = Digest::new(0);
        self.commands.hash(&mut digest);
        digest.value()
    }

    /// Every layer has its own chunks with its weights in them.
    fn is_resident(&self) -> bool {
        self.manager.status().is_whole() && self.manager.figures().layout().moving.is_empty()
    }

    /// A worker waits for the chunks of its layers.
    fn lacks_layers(&self) -> bool {
        self.phase == Phase::Starting && self.manager.status().lacks_weights()
    }

    fn flush(&mut self) {
        let actions = self.actions.drain(..).map(|action| BudgetCommand::Port(Command::Memory(action)));
        self.commands.extend(actions);
    }
}

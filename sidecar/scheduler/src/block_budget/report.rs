//! What reports of the engine, messages of peers and orders to sleep change.

use sluice_policy::ids::Nanos;
use sluice_ports::block_budget::{EngineDemand, EngineOrder, EngineReport};
use sluice_ports::peers::PeerPortEvent;

use super::event::BudgetCommand;
use super::retirement::Retirement;
use super::{BudgetScheduler, HOLD_INTERVAL_NS, Phase};
use crate::event::Sleep;

impl BudgetScheduler {
    pub(super) fn on_report(&mut self, now: Nanos, report: EngineReport) {
        if report == EngineReport::Lost {
            return self.on_engine_lost(now);
        }
        if !self.is_possible(&report) {
            return self.abort();
        }
        match report {
            EngineReport::Started => self.phase = Phase::Starting,
            EngineReport::Attached(kv) => {
                self.extents.attach(kv.extents, kv.chunks_per_layer);
                (self.kv, self.is_new, self.phase) = (Some(kv), true, Phase::Held);
                self.demand = EngineDemand::default();
                self.retirement = Retirement::default();
            }
            EngineReport::Held { idle, demand } => {
                self.demand = demand;
                self.extents.close_idle(&idle, &mut self.manager);
                self.phase = Phase::Held;
                self.counters.holds += 1;
                self.retirement = Retirement::default();
            }
            EngineReport::Retired { extents, preempted } => {
                self.retirement.on_retired(extents.len() as u32);
                self.extents.retire(&extents, &mut self.manager);
                self.counters.preemptions += u64::from(preempted);
                self.phase = Phase::Held;
            }
            EngineReport::Demand(demand) => {
                let begins = demand.has_requests() != self.demand.has_requests();
                self.hold_due |= begins || (demand.wanted_blocks > 0 && !self.is_starved);
                self.demand = demand;
            }
            EngineReport::PassBegun { pass } => self.lease(now, pass),
            EngineReport::PassEnded(times) => {
                self.pass_runs = false;
                self.manager.finish(&times);
            }
            EngineReport::Lost => {}
        }
    }

    /// Whether an engine that works can report this now. Its two processes are not trusted to agree.
    fn is_possible(&self, report: &EngineReport) -> bool {
        match report {
            EngineReport::Started => self.phase == Phase::Absent,
            EngineReport::Attached(_) => self.phase == Phase::Starting,
            EngineReport::Held { .. } => self.phase == Phase::Holding && !self.pass_runs,
            EngineReport::Retired { .. } => self.phase == Phase::Retiring,
            EngineReport::PassBegun { .. } => {
                matches!(self.phase, Phase::Running | Phase::Holding)
                    && !self.pass_runs
                    && !self.manager.status().lacks_weights()
            }
            EngineReport::PassEnded(_) => self.pass_runs,
            EngineReport::Demand(_) => self.kv.is_some(),
            EngineReport::Lost => true,
        }
    }

    /// Ends the engine.
    fn abort(&mut self) {
        if !matches!(self.phase, Phase::Absent | Phase::Ending) {
            self.phase = Phase::Ending;
            self.commands.push(BudgetCommand::Engine(EngineOrder::Abort));
        }
    }

    pub(super) fn on_peer_event(&mut self, now: Nanos, event: PeerPortEvent) {
        match event {
            PeerPortEvent::Peer(event) => self.loans.on_event(now, event, &mut self.manager),
            PeerPortEvent::SliceGranted { epoch } => {
                let Some(since) = self.slice.on_granted(now, epoch) else { return };
                self.counters.slices += 1;
                self.counters.slice_wait_ns += now.since(since);
            }
            PeerPortEvent::SliceTakenOver { epoch } => {
                let since = self.slice.on_taken_over(epoch);
                self.counters.slice_held_ns += since.map_or(0, |since| now.since(since));
            }
            PeerPortEvent::SliceRequested { epoch } => return self.slice.on_requested(epoch),
        }
        (self.hold_due, self.is_starved) = (true, false);
    }

    /// KV of the engine's requests stays valid under every order to sleep: the engine alone could recompute it.
    pub(super) fn on_sleep_order(&mut self, order: Sleep) {
        match order {
            // At a boundary: a pass may begin before the engine is held.
            Sleep::Idle => self.sleeps_if_idle = true,
            Sleep::Ordered | Sleep::Discard => self.sleep_requested = true,
            Sleep::WakeUp => {
                (self.sleep_requested, self.sleeps_if_idle) = (false, false);
                self.manager.wake_up();
            }
        }
        self.hold_due = true;
    }

    pub(super) fn on_tick(&mut self, now: Nanos) {
        let (manager, actions) = (&mut self.manager, &mut self.actions);
        let mut commands = Vec::new();
        self.loans.claim_floor(now, manager, actions, &mut commands);
        self.commands.extend(commands.into_iter().map(BudgetCommand::Port));
        self.hold_due |= self.may_move() && now.since(self.held_at) >= HOLD_INTERVAL_NS;
    }

    /// A boundary could move memory although the engine reported nothing.
    pub(super) fn may_move(&self) -> bool {
        !self.manager.is_idle() || self.loans.needs_ticks() || self.demand.wanted_blocks > 0
    }

    fn on_engine_lost(&mut self, now: Nanos) {
        self.counters.engine_losses += 1;
        self.extents.close_all(&mut self.manager);
        (self.phase, self.kv, self.demand) = (Phase::Absent, None, EngineDemand::default());
        self.pass_runs = false;
        self.manager.engine_lost(now, &mut self.actions);
        self.manager.abandon_step();
    }

    /// A pass begins: the layers that move become ready for it.
    fn lease(&mut self, now: Nanos, pass: u64) {
        self.pass_runs = true;
        let lease = self.manager.begin(now, &mut self.actions);
        self.counters.passes += 1;
        self.slice.on_step();
        self.commands
            .push(BudgetCommand::Engine(EngineOrder::Lease { pass, generations: lease.generations }));
    }

    /// KV was lost on its way from the host tier. The engine alone knows which requests used it, and no message names lost
    /// KV: it ends, and its requests run again in the next one.
    pub(super) fn lose_extents(&mut self) {
        let lost = self.manager.take_lost_requests();
        if !lost.is_empty() {
            self.counters.extents_lost += lost.len() as u64;
            self.abort();
        }
    }
}

//! The boundary: the engine is held, or none is attached. Memory moves, and extents are granted and withdrawn.

use sluice_policy::ids::{LayerId, Nanos};
use sluice_policy::loan_negotiator::LoanControl;
use sluice_policy::memory_manager::{Admission, Prepared, SleepState, StepNeed};
use sluice_ports::block_budget::{EngineOrder, ExtentId, Resume};

use super::event::BudgetCommand;
use super::{BudgetScheduler, Phase};

impl BudgetScheduler {
    pub(super) fn hold(&mut self) {
        self.phase = Phase::Holding;
        self.commands.push(BudgetCommand::Engine(EngineOrder::Hold));
    }

    pub(super) fn at_boundary(&mut self, now: Nanos) {
        let absent = self.phase == Phase::Absent && self.loans.negotiator().is_none();
        if absent || !self.manager.status().is_loaded() || self.manager.status().is_blocked() {
            return;
        }
        self.sleep_or_wake();
        let may_run = self.update_slice(now);
        self.manager.boundary(now, &mut self.actions);
        self.negotiate(now);
        if self.slice.is_expired() {
            self.manager.loans_mut().on_borrow_denied();
        }
        self.extents.drop_evicted(&self.manager);
        if self.phase != Phase::Held || self.manager.status().is_blocked() {
            return;
        }
        let may_retire = !self.is_new && !self.retirement.is_exhausted();
        if self.manager.loans().debt_lacks_room() && may_retire {
            return self.retire();
        }
        let status = self.manager.status();
        let may_open = (may_run || self.is_new) && !status.lacks_weights() && !status.is_spilling();
        if may_open && self.open_extents(now) {
            self.resume(now);
            self.hold_due = !may_run;
        }
    }

    /// Work wakes a tenant unless it sleeps by order. Falling asleep suspends the KV of all extents.
    fn sleep_or_wake(&mut self) {
        let sleeps = std::mem::take(&mut self.sleeps_if_idle) && !self.demand.has_requests();
        if self.sleep_requested || (sleeps && self.phase != Phase::Starting) {
            self.manager.sleep(true);
        } else if self.demand.has_requests() || self.phase == Phase::Starting {
            self.manager.wake_up();
        }
        if self.manager.status().sleep_state() == SleepState::Suspending {
            self.extents.suspend_all(&mut self.manager);
        }
    }

    fn negotiate(&mut self, now: Nanos) {
        let mut commands = Vec::new();
        self.loans.boundary(now, &mut self.manager, &mut self.actions, &mut commands);
        self.commands.extend(commands.into_iter().map(BudgetCommand::Port));
    }

    pub(super) fn retire(&mut self) {
        let chunks = self.extents.kv_blocks() * u32::from(self.manager.geometry().layers());
        let known = self.manager.loans().releasing_chunks().div_ceil(chunks.max(1));
        let extents = self.retirement.asks_for(known);
        self.phase = Phase::Retiring;
        self.commands.push(BudgetCommand::Engine(EngineOrder::Retire { extents }));
    }

    /// Opens the extents that the engine has, and as many more as its requests want and memory allows. Returns whether
    /// all of that has ended.
    fn open_extents(&mut self, now: Nanos) -> bool {
        let mut wanted = self.wanted_extents();
        loop {
            let reopening = self.extents.reopening(&self.manager);
            let opening = self.extents.opening(wanted, &reopening, &self.manager);
            let need = self.need(&reopening, &opening);
            if need.admit.is_empty() {
                return true;
            }
            match self.manager.prepare(now, &need, &mut self.actions) {
                Prepared::Ready => {
                    self.extents.on_opened(&reopening, &mut self.manager);
                    self.extents.on_opened(&opening, &mut self.manager);
                    return true;
                }
                Prepared::Wait | Prepared::Loading if !self.is_denied(now) => return false,
                Prepared::Wait | Prepared::Loading => {}
                Prepared::Short { missing_kv_blocks, .. } => {
                    // Idle extents may have been evicted for the others.
                    self.extents.drop_evicted(&self.manager);
                    match self.fewer(wanted, missing_kv_blocks) {
                        Some(fewer) => wanted = fewer,
                        None if self.extents.drop_idle() => {}
                        None => {
                            // KV in use does not fit, as after a wake-up with less memory.
                            if !self.is_new && !self.retirement.is_exhausted() {
                                self.retire();
                            }
                            return false;
                        }
                    }
                }
            }
        }
    }

    /// Peers were asked for what a growth lacks. Returns whether they denied it, so that it goes on without them.
    fn is_denied(&mut self, now: Nanos) -> bool {
        if self.manager.loans().borrow_request().is_none() {
            return false;
        }
        self.negotiate(now);
        self.manager.loans().borrow_request().is_none() && !self.manager.status().is_blocked()
    }

    /// Extents to open beyond those that have memory: those that are guaranteed, and those that requests lack.
    fn wanted_extents(&self) -> u32 {
        let Some(kv) = self.kv else { return 0 };
        let lacking = self.demand.wanted_blocks.div_ceil(kv.blocks_per_extent);
        let guaranteed = kv.guaranteed_extents.saturating_sub(self.extents.granted());
        lacking.max(guaranteed).min(self.extents.room())
    }

    /// The next smaller number of extents to try; `None` after 0. What is missing may be all of it because a policy gives
    /// nothing for a part, so half is tried then.
    fn fewer(&self, wanted: u32, missing_kv_blocks: u32) -> Option<u32> {
        let missing = missing_kv_blocks.div_ceil(self.extents.kv_blocks());
        (wanted > 0).then(|| wanted.checked_sub(missing).filter(|left| *left > 0).unwrap_or(wanted / 2))
    }

    fn need(&self, reopening: &[(ExtentId, Admission)], opening: &[(ExtentId, Admission)]) -> StepNeed {
        let kv_blocks = self.extents.kv_blocks();
        StepNeed {
            admit: reopening.iter().chain(opening).map(|(_, admission)| admission.clone()).collect(),
            kv_blocks: opening.iter().map(|(_, admission)| (admission.request, kv_blocks)).collect(),
            without_offloaded_prefills: true,
            ..StepNeed::default()
        }
    }

    pub(super) fn resume(&mut self, now: Nanos) {
        let changes = self.manager.take_table_changes();
        let memory = self.extents.memory_of(changes);
        let (granted, withdrawn) = self.extents.take_changes();
        let residency = self.manager.figures().residency();
        let leased = residency.iter().enumerate().filter(|(_, layer)| layer.slot.is_some() || !layer.present);
        let leased_layers: Vec<_> = leased.map(|(layer, _)| LayerId(layer as u16)).collect();
        self.waits_for_leases = !leased_layers.is_empty();
        let epoch = self.slice.held_epoch().unwrap_or(0);
        // The engine says nothing new while it lacks the same: ticks try again.
        let given = granted.len() as u32 * self.kv.map_or(0, |kv| kv.blocks_per_extent);
        self.demand.wanted_blocks = self.demand.wanted_blocks.saturating_sub(given);
        self.is_starved = self.demand.wanted_blocks > 0;
        (self.phase, self.held_at, self.is_new) = (Phase::Running, now, false);
        let resume = Resume { epoch, granted, withdrawn, memory, leased_layers };
        self.commands.push(BudgetCommand::Engine(EngineOrder::Resume(resume)));
    }
}

//! The time slice: passes run while it is held.

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::{Demand, SleepState};
use sluice_ports::peers::SliceCommand;

use super::{BudgetCommand, BudgetScheduler, Phase};
use crate::event::Command;
use crate::time_slice::{SliceNeed, SlicePlan};

impl BudgetScheduler {
    fn slice_plan(&self, now: Nanos) -> SlicePlan {
        let status = self.manager.status();
        let need = SliceNeed {
            has_work: self.demand.has_requests() && status.sleep_state() == SleepState::Awake,
            has_engine: self.phase != Phase::Absent,
            is_ready: !status.lacks_weights(),
        };
        let decode_ns = self.manager.timing().step_stats().decode_step_ns();
        self.slice.plan(now, need, |_| u64::try_from(decode_ns).unwrap_or(u64::MAX))
    }

    /// Whether the engine must be held because its time slice ends.
    pub(super) fn slice_ends(&self, now: Nanos) -> bool {
        matches!(self.slice_plan(now), SlicePlan::Wait { .. }) && self.demand.has_requests()
    }

    /// Requests or releases the time slice, and sets the demand of the memory manager. Returns whether passes may run.
    pub(super) fn update_slice(&mut self, now: Nanos) -> bool {
        if self.phase == Phase::Starting {
            // The layers come back for its loader, which takes no turn.
            self.manager.set_demand(Demand { has_requests: true, is_active: true });
            return false;
        }
        let plan = self.slice_plan(now);
        match plan {
            SlicePlan::Run => {}
            SlicePlan::RunExpired => self.slice.expire(),
            SlicePlan::Wait { release, request } => {
                if release && let Some(since) = self.slice.release() {
                    self.counters.slice_held_ns += now.since(since);
                    self.commands.push(BudgetCommand::Port(Command::Slice(SliceCommand::Release)));
                }
                if request {
                    self.slice.request(now);
                    self.commands.push(BudgetCommand::Port(Command::Slice(SliceCommand::Request)));
                }
            }
        }
        let may_run = !matches!(plan, SlicePlan::Wait { .. });
        let has_requests = self.demand.has_requests() && self.phase != Phase::Absent;
        self.manager.set_demand(Demand { has_requests, is_active: may_run });
        may_run
    }
}

//! Whether steps run, and how a request leaves the running ones.

use sluice_policy::ids::{Nanos, RequestId};

use super::Scheduler;
use super::plan::Planner;
use crate::event::{Command, Finish, SchedulerOutput};
use crate::sequence::Sequence;

impl Scheduler {
    /// Whether the tenant is loaded and has an engine.
    pub(super) fn serving(&self) -> bool {
        self.engine.is_some() && self.manager.status().is_loaded()
    }

    /// Removes a running request, frees its memory and row, and reports how it ended.
    pub(super) fn end(&mut self, id: RequestId, finish: Finish) {
        self.remove_running(id);
        self.requests.hold.lift();
        self.requests.pauses.on_finish(id);
        self.outputs.push(SchedulerOutput::Finished { request: id, finish });
    }

    pub(super) fn remove_running(&mut self, id: RequestId) -> Option<Sequence> {
        let sequence = self.requests.running.take(id)?;
        self.manager.close(id);
        Some(sequence)
    }

    /// Queues the memory manager's actions as commands.
    pub(super) fn flush(&mut self) {
        self.commands.extend(self.actions.drain(..).map(Command::Memory));
    }

    /// Returns what planning sees.
    pub(super) fn planner(&self, now: Nanos) -> Planner<'_> {
        let Scheduler { config, manager, requests, slice, .. } = self;
        Planner { now, step: self.next_step, config, manager, requests, slice }
    }
}

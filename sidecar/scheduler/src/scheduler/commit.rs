//! Carries out plans. Nothing else asks memory for a step, starts a new one, or lets KV of requests leave the device
//! for it. `Scheduler::replay` starts the step of a lost engine again.
//!
//! [`Scheduler::commit`] carries out the plan of a step. `evict` carries out evictions: those of this plan, and those
//! that are planned before it, for sleep, for memory that is owed, and for requests that pause or go first.

mod evict;

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::Prepared;

use super::Scheduler;
use super::limits::STARVED_BOUNDARIES_MAX;
use crate::event::{Command, Finish};
use crate::sequence::Sequence;
use crate::step_plan::{Eviction, PlanNotes, StepPlan};

/// What a plan led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// The step runs, or waits for memory, or no request can run.
    Done,
    /// Memory refused the plan: another one is due.
    Refused(Refusal),
}

/// Why a plan was not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Evictions changed the cache, or peers denied a loan: the plan no longer fits what is there.
    Changed,
    /// As [`Prepared::Loading`].
    Loading,
    /// As [`Prepared::Short`].
    Short {
        /// KV blocks that are missing.
        missing_kv_blocks: u32,
        /// The activation space is what is missing.
        activation: bool,
    },
    /// Own layers could not be remapped.
    LayersStay {
        /// KV blocks that are missing.
        missing_kv_blocks: u32,
    },
}

impl Scheduler {
    /// Carries out a plan: notes what planning found, evicts, asks for memory, and starts the step if memory is there.
    pub(super) fn commit(&mut self, now: Nanos, plan: &StepPlan) -> Committed {
        self.record_notes(&plan.notes);
        self.requests.queue.number(plan.admit.iter().map(|one| one.id));
        if let Some(view) = &plan.placement {
            self.commands.push(Command::Plan(self.manager.ask_plan(view)));
        }
        if plan.is_starved {
            self.fail_if_starved();
            return Committed::Done;
        }
        for eviction in &plan.evict {
            match (eviction, self.evict(now, eviction)) {
                (Eviction::Remap { .. }, true) => return Committed::Done,
                (Eviction::Remap { missing_kv_blocks, .. }, false) => {
                    let missing_kv_blocks = *missing_kv_blocks;
                    return Committed::Refused(Refusal::LayersStay { missing_kv_blocks });
                }
                _ => {}
            }
        }
        if plan.cache_epoch != self.manager.status().cache_epoch() {
            return Committed::Refused(Refusal::Changed);
        }
        self.commit_step(now, plan)
    }

    /// Asks for the memory of the step, and starts it if the memory is there. While memory moves, the plan is kept, and
    /// the smaller step runs.
    fn commit_step(&mut self, now: Nanos, plan: &StepPlan) -> Committed {
        if plan.batch.scheduled.is_empty() {
            return Committed::Done;
        }
        match self.ask_memory(now, plan) {
            Prepared::Ready => {
                self.start_step(now, plan);
                Committed::Done
            }
            Prepared::Wait => self.wait_for_memory(now, plan),
            Prepared::Loading => Committed::Refused(Refusal::Loading),
            Prepared::Short { missing_kv_blocks, activation } => {
                Committed::Refused(Refusal::Short { missing_kv_blocks, activation })
            }
        }
    }

    /// Asks peers if the plan waits for a loan. The plan is refused if they have none; else it is kept, and the smaller
    /// step runs if its memory is there.
    fn wait_for_memory(&mut self, now: Nanos, plan: &StepPlan) -> Committed {
        let is_denied = self.ask_peers(now);
        if is_denied {
            return Committed::Refused(Refusal::Changed);
        }
        self.keep_plan(plan);
        let epoch = self.manager.status().cache_epoch();
        let Some(smaller) = plan.fallback.as_deref().filter(|one| one.cache_epoch == epoch) else {
            return Committed::Done;
        };
        let answer = self.ask_memory(now, smaller);
        if answer == Prepared::Ready {
            self.start_step(now, smaller);
        }
        Committed::Done
    }

    /// Asks for the memory of a plan.
    fn ask_memory(&mut self, now: Nanos, plan: &StepPlan) -> Prepared {
        let need = plan.batch.need(plan.admissions(), |id| self.planner(now).held_kv_blocks(plan, id));
        self.manager.prepare(now, &need, &mut self.actions)
    }

    /// Runs the requests that the plan admits, whose KV is open now, and submits the step.
    fn start_step(&mut self, now: Nanos, plan: &StepPlan) {
        (self.head_starved, self.kept) = (0, None);
        plan.admit.iter().for_each(|one| self.run(one));
        self.report_admissions(now, &plan.admit);
        self.submit_step(now, plan.batch.clone());
    }

    /// Records what planning found.
    fn record_notes(&mut self, notes: &PlanNotes) {
        self.manager.note(&notes.memory);
        if notes.refused_admission {
            self.requests.hold.refuse(self.next_step);
        }
        if notes.refused_extra {
            self.requests.hold.refuse_extra(self.next_step);
        }
    }

    /// Counts a boundary at which the oldest request alone does not fit. Its memory is guaranteed, so only a failing
    /// backend causes this; after [`STARVED_BOUNDARIES_MAX`] boundaries the request fails.
    fn fail_if_starved(&mut self) {
        self.head_starved += 1;
        if self.head_starved < STARVED_BOUNDARIES_MAX {
            return;
        }
        self.head_starved = 0;
        let oldest = self.requests.running.iter().next().map(Sequence::id);
        if let Some(id) = oldest {
            self.end(id, Finish::Failed("the device did not provide the guaranteed memory".into()));
        }
    }
}

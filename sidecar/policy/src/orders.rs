//! What the memory manager orders, counts and waits for. Each part that orders actions borrows it.
//!
//! | copy | deadline |
//! |---|---|
//! | weights of a layer, fetched KV | when its step reaches the layer; an early copy for the next step, a step later |
//! | KV that is spilled from a buffer | when the step reaches the next layer of the buffer |
//! | write-back, KV loaded during steps | none, unless steps wait for it |
//! | everything between two steps | at once |

use alloc::vec::Vec;

mod counters;
pub mod pending;
mod step_state;

pub use counters::Counters;
pub use step_state::StepState;

use crate::action::{Action, Work};
use crate::copy_priority::CopyDeadlines;
use crate::cost::StepStats;
use crate::ids::{ActionId, Nanos};
use crate::reason::Reason;
use pending::{Pending, PendingActions};

/// Ordered actions, the step under way, and counters of what was decided.
#[derive(Clone, Debug)]
pub struct Orders {
    pending: PendingActions,
    step: StepState,
    counters: Counters,
    /// Copies use the link by their deadlines, else in the order of their submission.
    by_deadline: bool,
}

impl Orders {
    /// Nothing is ordered yet.
    pub fn new(by_deadline: bool) -> Orders {
        Orders {
            pending: PendingActions::default(),
            step: StepState::default(),
            counters: Counters::new(),
            by_deadline,
        }
    }

    /// Sets whether copies have deadlines.
    pub fn set_by_deadline(&mut self, by_deadline: bool) {
        self.by_deadline = by_deadline;
    }

    /// Actions that have not ended.
    pub fn pending(&self) -> &PendingActions {
        &self.pending
    }

    /// The step under way.
    pub fn step(&self) -> &StepState {
        &self.step
    }

    /// Boundaries, steps and decisions so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// An event of this time is being handled.
    pub fn set_now(&mut self, now: Nanos) {
        self.step.set_now(now);
    }

    /// A step boundary: no step waits to begin again.
    pub fn on_boundary(&mut self) {
        self.counters.on_boundary();
        self.step.on_boundary();
    }

    /// A step begins.
    pub fn begin_step(&mut self, weights_are_loading: bool) {
        self.step.begin(weights_are_loading);
    }

    /// The step has finished.
    ///
    /// # Panics
    /// If no step runs.
    pub fn finish_step(&mut self) {
        self.step.finish();
        self.counters.on_step_finished();
    }

    /// The step under way lost its engine.
    pub fn on_engine_lost(&mut self) {
        self.step.on_engine_lost();
    }

    /// No step runs, and every pending action may go on during a step: memory may change.
    pub fn is_between_steps(&self) -> bool {
        !self.step.is_running() && !self.pending.blocking()
    }

    /// Takes the action that has ended.
    ///
    /// # Panics
    /// If no such action is pending.
    pub fn take(&mut self, id: ActionId) -> Pending {
        self.pending.take(id)
    }

    /// Time of the event that is being handled.
    pub fn now(&self) -> Nanos {
        self.step.now()
    }

    /// Step boundaries so far, idle ones included.
    pub fn boundaries(&self) -> u64 {
        self.counters.boundaries()
    }

    /// Steps that have finished.
    pub fn steps(&self) -> u64 {
        self.counters.steps()
    }

    /// Orders an action that a step, or a change between two steps, waits for.
    pub fn order(&mut self, work: Work, reason: Reason, effect: Pending, out: &mut Vec<Action>) {
        self.order_by(Some(self.now()), work, reason, effect, out);
    }

    /// Orders an action that is needed at `due`; `None` = no step waits for it.
    pub fn order_by(
        &mut self,
        due: Option<Nanos>,
        work: Work,
        reason: Reason,
        effect: Pending,
        out: &mut Vec<Action>,
    ) {
        self.count(reason);
        let due = due.filter(|_| self.by_deadline);
        self.pending.order(work, (reason, due), effect, out);
    }

    /// Drops the copies of weights and KV that are queued, unless they are being dropped.
    pub fn drop_copies(&mut self, reason: Reason, out: &mut Vec<Action>) {
        if !self.pending.dropping() {
            self.order(Work::DropFills, reason, Pending::Drop, out);
        }
    }

    /// When the step under way reaches each layer; between two steps, when the next one does if it begins now.
    pub fn timetable(&self, step_stats: &StepStats) -> CopyDeadlines {
        CopyDeadlines::new(self.step.timed_from(), &step_stats.compute_ns(), step_stats.overhead_ns())
    }

    /// Counts a decision.
    pub fn count(&mut self, reason: Reason) {
        self.count_many(reason, 1);
    }

    /// Counts `times` decisions.
    pub fn count_many(&mut self, reason: Reason, times: u32) {
        self.counters.add(reason, times);
    }

    /// Counts chunks that changed their owner.
    pub fn count_moved(&mut self, reason: Reason, chunks: u32) {
        self.counters.add_moved(reason, chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_without_deadlines_counts_and_has_none() {
        let mut out = Vec::new();
        for (by_deadline, due) in [(true, Some(Nanos(7))), (false, None)] {
            let mut orders = Orders::new(by_deadline);
            orders.step.set_now(Nanos(7));
            orders.order(Work::DropFills, Reason::Rebuild, Pending::Drop, &mut out);
            assert_eq!(out.pop().map(|action| action.due), Some(due));
            assert_eq!(orders.counters.decisions()[Reason::Rebuild as usize], 1);
            assert!(orders.pending.dropping());
        }
    }

    #[test]
    fn copies_are_dropped_once_at_a_time() {
        let (mut orders, mut out) = (Orders::new(true), Vec::new());
        (0..2).for_each(|_| orders.drop_copies(Reason::Hibernate, &mut out));
        assert_eq!(out.len(), 1);
        orders.pending.take(out[0].id);
        orders.drop_copies(Reason::Hibernate, &mut out);
        assert_eq!(out.len(), 2);
    }
}

//! The queue of operations that run one after the other.

use std::collections::VecDeque;
use std::time::Instant;

use sluice_policy::action::{Action, Work};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::ids::{ActionId, Nanos};
use sluice_policy::reason::Reason;

use super::operation_refs::OperationRefs;

/// Operations in order; the first may have started.
#[derive(Debug, Default)]
pub(super) struct SerialQueue {
    pub(super) queue: VecDeque<Operation>,
    submitted: u64,
    pub(super) head_state: HeadState,
}

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    number: u64,
    pub(super) id: ActionId,
    pub(super) work: Work,
    pub(super) reason: Reason,
    due: Option<Nanos>,
    refs: OperationRefs,
}

/// Progress of the first operation.
#[derive(Debug, Default)]
pub(super) enum HeadState {
    /// Not started.
    #[default]
    NotStarted,
    /// The serial worker runs it.
    RunningJob,
    /// The serial worker prepares the chunks of its transaction: allocates their pages, and poisons those
    /// that are handed over.
    Preparing,
    /// Sent to the engine.
    AwaitingEngine(Instant),
    /// The engine releases its imports of the chunks; then the serial worker releases them.
    AwaitingRelease,
}

impl SerialQueue {
    pub(super) fn push(&mut self, Action { id, work, reason, due }: Action) {
        let named = OperationRefs::of(&work);
        self.queue.push_back(Operation { number: self.submitted, id, work, reason, due, refs: named });
        self.submitted += 1;
    }

    /// Returns the number of the next operation.
    pub(super) fn next_number(&self) -> u64 {
        self.submitted
    }

    /// Whether an unfinished operation with a lower number refers to the same chunk or host block.
    pub(super) fn depends_on(&self, number: u64, named: &OperationRefs) -> bool {
        let mut earlier = self.queue.iter().filter(|operation| operation.number < number);
        earlier.any(|operation| operation.refs.overlaps(named))
    }

    /// Returns the copy priority of the first operation if it starts now. It takes the earliest deadline in
    /// the queue, because later operations wait for it.
    pub(super) fn head_priority(&self, now: Nanos) -> CopyPriority {
        let first = self.queue.front().expect("an operation is at hand");
        CopyPriority::new(first.id, self.queue.iter().filter_map(|operation| operation.due).min(), now)
    }

    /// Returns the transaction or release that the engine has not acknowledged.
    pub(super) fn awaiting_ack(&self) -> Option<ActionId> {
        let waiting = matches!(self.head_state, HeadState::AwaitingEngine(_) | HeadState::AwaitingRelease);
        self.queue.front().filter(|_| waiting).map(|operation| operation.id)
    }
}

//! Deadlines of copies, from the time, the measured compute and the step under way.
//!
//! | copy | deadline |
//! |---|---|
//! | weights of a layer, fetched KV | when its step reaches the layer; an early copy for the next step, a step later |
//! | KV that is spilled from a buffer | when the step reaches the next layer of the buffer |
//! | write-back, KV loaded during steps | none, unless steps wait for it |
//! | everything between two steps | at once |

use alloc::vec::Vec;

use super::MemoryManager;
use crate::action::{Action, Work};
use crate::copy_priority::CopyDeadlines;
use crate::ids::Nanos;
use crate::pending::Pending;
use crate::reason::Reason;

impl MemoryManager {
    /// Orders an action that is needed at `due`; `None` = no step waits for it.
    pub(super) fn submit_with_deadline(
        &mut self,
        due: Option<Nanos>,
        work: Work,
        reason: Reason,
        effect: Pending,
        out: &mut Vec<Action>,
    ) {
        self.count(reason);
        // Without deadlines copies use the link in the order of their submission.
        let due = due.filter(|_| self.params.link_by_deadline);
        self.pending.order(work, (reason, due), effect, out);
    }

    /// When the step under way reaches each layer; between two steps, when the next one does if it begins now.
    pub(super) fn timetable(&self) -> CopyDeadlines {
        CopyDeadlines::new(
            self.step.timed_from(),
            &self.step_stats.compute_ns(),
            self.step_stats.overhead_ns(),
        )
    }
}

//! By when what is ordered is needed: the deadlines of copies, from the moment, the measured compute and the step under way.
//!
//! | copy | deadline |
//! |---|---|
//! | slab of a layer, KV that is fetched | when its step comes to the layer; of a first copy for the next step, a step later |
//! | KV that is spilled out of a buffer | when the step comes to the next layer of the buffer |
//! | write-back, KV that comes home beside steps | none, unless steps wait for it |
//! | everything between two steps | at once |

use alloc::vec::Vec;

use super::MemoryManager;
use crate::action::{Action, Work};
use crate::copy_priority::CopyDeadlines;
use crate::ids::Nanos;
use crate::pending::Pending;
use crate::reason::Reason;

impl MemoryManager {
    /// Orders something that is needed at `due`, if anybody waits for it.
    pub(super) fn submit_with_deadline(
        &mut self,
        due: Option<Nanos>,
        work: Work,
        reason: Reason,
        effect: Pending,
        out: &mut Vec<Action>,
    ) {
        self.count(reason);
        // Without deadlines all go in the order in which they come to the link.
        let due = due.filter(|_| self.params.link_by_deadline);
        self.pending.order(work, (reason, due), effect, out);
    }

    /// When the step under way comes to each layer; between two, when the next one does, if it begins now.
    pub(super) fn timetable(&self) -> CopyDeadlines {
        CopyDeadlines::new(
            self.step.timed_from(),
            &self.step_stats.compute_ns(),
            self.step_stats.overhead_ns(),
        )
    }
}

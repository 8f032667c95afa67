//! The queue of asynchronous copies: a copy waits here while an earlier operation refers to one of its chunks
//! or host blocks.

use sluice_policy::action::{FillTarget, Work};
use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::ids::{ActionId, SlotId};

use super::operation_refs::OperationRefs;

/// Copies that wait for operations, copies in lanes except write-backs, and drops that wait for those.
#[derive(Debug, Default)]
pub(super) struct CopyQueue {
    pub(super) waiting: Vec<WaitingCopy>,
    pub(super) in_flight: Vec<ActionId>,
    pub(super) drops: Vec<PendingDrop>,
}

/// A copy that waits for operations.
#[derive(Debug)]
pub(super) struct WaitingCopy {
    pub(super) id: ActionId,
    pub(super) priority: CopyPriority,
    pub(super) work: Work,
    pub(super) refs: OperationRefs,
    /// Operations submitted before it have lower numbers.
    pub(super) serial_before: u64,
}

impl WaitingCopy {
    /// Whether this copy must run before `later`, which was submitted after it.
    pub(super) fn must_precede(&self, later: &WaitingCopy) -> bool {
        same_lane(&self.work, &later.work) || self.refs.overlaps(&later.refs)
    }
}

/// A drop that completes with the last copy of `running`.
#[derive(Debug)]
pub(super) struct PendingDrop {
    pub(super) id: ActionId,
    pub(super) running: Vec<ActionId>,
}

fn same_lane(a: &Work, b: &Work) -> bool {
    match (a, b) {
        (Work::Fill(a), Work::Fill(b)) => {
            target_slot(a.target).is_some() && target_slot(a.target) == target_slot(b.target)
        }
        (Work::Fetch(a), Work::Fetch(b)) => a.buffer == b.buffer || a.layer == b.layer,
        (Work::Fetch(a), Work::Spill(b)) | (Work::Spill(b), Work::Fetch(a)) => a.buffer == b.buffer,
        (Work::Spill(a), Work::Spill(b)) => a.buffer == b.buffer,
        (Work::WriteBack(_), Work::WriteBack(_)) => true,
        _ => false,
    }
}

fn target_slot(target: FillTarget) -> Option<SlotId> {
    match target {
        FillTarget::Slot(slot, _) => Some(slot),
        FillTarget::Global | FillTarget::Resident(_) => None,
    }
}

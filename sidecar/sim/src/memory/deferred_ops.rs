//! Fetches, spills and write-backs that wait for earlier operations.

use std::collections::VecDeque;

use sluice_policy::action::{LayerBlockSwap, Work};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::{ActionId, Nanos};

use crate::device::SimDevice;

/// Id and deadline of a copy.
type CopyDeadline = (ActionId, Option<Nanos>);

/// Waiting copies in submission order, each with the last operation that overlaps it.
#[derive(Debug, Default)]
pub(super) struct DeferredCopies(VecDeque<(CopyDeadline, Work, Option<ActionId>)>);

impl DeferredCopies {
    /// Submits a copy to the device once the copies before it and the operation `behind` are done.
    pub(super) fn submit(
        &mut self,
        copy: CopyDeadline,
        work: Work,
        behind: Option<ActionId>,
        device: &mut SimDevice,
    ) {
        self.0.push_back((copy, work, behind));
        self.submit_ready(device);
    }

    /// Submits the copies that waited for the operation `ended`.
    pub(super) fn release(&mut self, ended: ActionId, device: &mut SimDevice) {
        self.0.iter_mut().for_each(|(_, _, behind)| *behind = behind.filter(|id| *id != ended));
        self.submit_ready(device);
    }

    fn submit_ready(&mut self, device: &mut SimDevice) {
        while let Some((copy, work, _)) = self.0.pop_front_if(|(_, _, behind)| behind.is_none()) {
            match work {
                Work::Fetch(fetch) => device.queue_fetch(copy, fetch),
                Work::Spill(spill) => device.queue_spill(copy, spill),
                Work::WriteBack(swaps) => device.queue_write_back(copy, swaps),
                other => unreachable!("{other:?} is not a copy of KV during steps"),
            }
        }
    }

    /// Fails every waiting fetch and spill as dropped.
    pub(super) fn drop_fetches(&mut self, device: &mut SimDevice) {
        let dropped =
            |(_, work, _): &(CopyDeadline, Work, _)| matches!(work, Work::Fetch(_) | Work::Spill(_));
        let (fetches, kept) = self.0.drain(..).partition(dropped);
        self.0 = kept;
        let fetches: VecDeque<_> = fetches;
        let outcome = Outcome::Failed(Failure::Dropped);
        device.completions.extend(fetches.into_iter().map(|((id, _), ..)| Completion { id, outcome }));
        self.submit_ready(device);
    }
}

/// Whether an operation uses a chunk or host block of a copy.
pub(super) fn overlaps(operation: &Work, copy: &Work) -> bool {
    let (chunks, hosts) = (operation.chunks(), operation.swaps());
    let host = |swap: &LayerBlockSwap| hosts.iter().any(|other| other.host == swap.host);
    copy.swaps().iter().any(|swap| chunks.contains(&swap.chunk) || host(swap))
}

//! What an operation touches, by which operations are kept in order.

use sluice_policy::action::Work;
use sluice_policy::ids::{ChunkId, HostBlockId};

/// Chunks and host blocks that an operation refers to, each sorted.
#[derive(Debug)]
pub(super) struct OperationRefs {
    chunks: Vec<ChunkId>,
    host_blocks: Vec<HostBlockId>,
}

impl OperationRefs {
    pub(super) fn of(work: &Work) -> OperationRefs {
        let mut chunks = work.chunks();
        let mut hosts: Vec<_> = work.swaps().iter().map(|swap| swap.host).collect();
        chunks.sort_unstable();
        hosts.sort_unstable();
        OperationRefs { chunks, host_blocks: hosts }
    }

    /// Whether both refer to the same chunk or host block.
    pub(super) fn overlaps(&self, other: &OperationRefs) -> bool {
        intersects(&self.chunks, &other.chunks) || intersects(&self.host_blocks, &other.host_blocks)
    }
}

/// Whether `sorted` and `others` have a common element.
fn intersects<T: Ord>(sorted: &[T], others: &[T]) -> bool {
    others.iter().any(|other| sorted.binary_search(other).is_ok())
}

/// Whether all elements are distinct.
pub(super) fn all_distinct<T: Ord>(all: impl IntoIterator<Item = T>) -> bool {
    let mut sorted: Vec<T> = all.into_iter().collect();
    sorted.sort_unstable();
    sorted.is_sorted_by(|a, b| a < b)
}

//! Copies from global to shared memory that are under way.

use crate::slots::LANES;

/// The copies of a warp that are under way.
#[derive(Default)]
pub(crate) struct Copies {
    pub pending: Vec<Pending>,
    /// How many groups each lane has committed.
    pub groups: [u32; LANES],
}

/// One copy of one lane.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub lane: usize,
    pub group: u32,
    /// Offset in shared memory.
    pub to: u64,
    /// Device address.
    pub from: u64,
    /// Bytes to take; the others up to `bytes` become zero.
    pub take: u64,
    pub bytes: u64,
}

impl Copies {
    /// Forgets all copies.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.groups = [0; LANES];
    }
}

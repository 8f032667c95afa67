//! One of something for each kind of wait that neighbours cause.

use std::ops::{Index, IndexMut};

use sluice_policy::peers::wait_time::WaitKind;

/// As many as [`WaitKind`] has kinds.
const KINDS: usize = 4;

/// What is kept of waits.
#[derive(Clone, Debug, Default)]
pub struct ByWaitKind<T> {
    /// Of hand-overs of the turn, which are no part of a wait of the scheduler's.
    pub handover: T,
    kinds: [T; KINDS],
}

impl<T> ByWaitKind<T> {
    /// All made alike.
    pub fn from_fn(make: impl Fn() -> T) -> Self {
        ByWaitKind { handover: make(), kinds: std::array::from_fn(|_| make()) }
    }
}

impl<T> Index<WaitKind> for ByWaitKind<T> {
    type Output = T;

    fn index(&self, awaited: WaitKind) -> &T {
        &self.kinds[awaited as usize]
    }
}

impl<T> IndexMut<WaitKind> for ByWaitKind<T> {
    fn index_mut(&mut self, awaited: WaitKind) -> &mut T {
        &mut self.kinds[awaited as usize]
    }
}

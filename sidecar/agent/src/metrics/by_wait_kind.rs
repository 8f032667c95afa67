//! One value for each kind of wait for peers.

use std::ops::{Index, IndexMut};

use sluice_policy::peers::wait_time::WaitKind;

/// Number of kinds of [`WaitKind`].
const KINDS: usize = 4;

/// Values by kind of wait.
#[derive(Clone, Debug, Default)]
pub struct ByWaitKind<T> {
    /// Value of time-slice hand-overs, which are no wait of the scheduler.
    pub handover: T,
    kinds: [T; KINDS],
}

impl<T> ByWaitKind<T> {
    /// Creates each value with `make`.
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

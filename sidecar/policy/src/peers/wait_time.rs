//! Waits that peers caused, measured by event times, so that a replay measures the same.

use crate::ids::Nanos;

/// What the tenant waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// The time slice: from the request to the grant.
    TimeSlice,
    /// A loan: from the step that lacked KV to the step prepared with borrowed memory. Searches without a loan are not
    /// counted; the time of a slice lost in between is included.
    Grant,
    /// Its own memory: from the decision to revoke until all revoked chunks are returned.
    Revoke,
    /// Its layers: from the availability of their memory until every layer is loaded.
    Wake,
}

/// A completed wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitSpan {
    /// What was waited for.
    pub kind: WaitKind,
    /// Start.
    pub since: Nanos,
    /// End.
    pub until: Nanos,
}

impl WaitSpan {
    /// Returns the duration, nanoseconds.
    pub fn ns(&self) -> u64 {
        self.until.since(self.since)
    }
}

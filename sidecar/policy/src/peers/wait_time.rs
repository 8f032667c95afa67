//! What a tenant waited for because of its neighbours: measured by the times of events, so that a replay measures the same.

use crate::ids::Nanos;

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// Its turn: from the wish to having it.
    Turn,
    /// A neighbour's memory: from the step that lacked KV to the step that was prepared with what was borrowed. Searches
    /// in which nobody gave anything are not counted; a turn that was lost meanwhile is in it.
    Grant,
    /// Its own memory: from the decision to revoke until nothing that was revoked is away any more.
    Revoke,
    /// Its layers: from having what comes back of their memory until every layer is committed.
    Wake,
}

/// One wait that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitSpan {
    /// For what.
    pub kind: WaitKind,
    /// Its beginning.
    pub since: Nanos,
    /// Its end.
    pub until: Nanos,
}

impl WaitSpan {
    /// How long, nanoseconds.
    pub fn ns(&self) -> u64 {
        self.until.since(self.since)
    }
}

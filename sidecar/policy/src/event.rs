//! Completions of actions. With the scheduler's calls they are the policy's only inputs.

use crate::ids::ActionId;

/// Why an action failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device has no memory left.
    OutOfMemory,
    /// The copy failed.
    CopyFailed,
    /// It was dropped before it started ([`crate::action::Work::DropFills`]).
    Dropped,
    /// The backend refused it: an address or chunk does not match its table.
    Refused,
    /// The GPU ledger has no free entry for the transfer. A retry may succeed.
    Busy,
}

/// Result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Done {
        /// Bytes copied; 0 for a mapping.
        bytes: u64,
        /// Duration of the work itself, without the wait for a slot's reader, nanoseconds; 0 for a copy that does not
        /// measure the link's bandwidth.
        duration_ns: u64,
    },
    /// It failed and left no effects.
    Failed(Failure),
}

/// The end of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The action.
    pub id: ActionId,
    /// The result.
    pub outcome: Outcome,
}

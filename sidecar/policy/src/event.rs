//! What the policy hears. Together with the calls of the scheduler these are all its inputs.

use crate::ids::ActionId;

/// Why an action did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device has no memory left for it.
    OutOfMemory,
    /// The copy failed.
    CopyFailed,
    /// It was dropped before it started ([`crate::action::Work::DropFills`]).
    Dropped,
    /// The backend refused it: an address or chunk that does not fit its table.
    Refused,
    /// The GPU's ledger has no entry left for the transfer. A later attempt may succeed.
    Busy,
}

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It happened: bytes moved (0 for a mapping) and the time it took, waiting for a slot's reader not counted.
    Done {
        /// Bytes copied.
        bytes: u64,
        /// Nanoseconds from start to end of the work itself; 0 for a copy that tells nothing of the link's bandwidth.
        duration_ns: u64,
    },
    /// It did not, and nothing of it is left behind.
    Failed(Failure),
}

/// The end of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub id: ActionId,
    /// How.
    pub outcome: Outcome,
}

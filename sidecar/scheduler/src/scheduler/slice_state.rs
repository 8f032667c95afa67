//! The right to run steps.

use sluice_policy::ids::Nanos;

/// The right to run steps under temporal sharing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SliceState {
    /// Not requested.
    #[default]
    NotQueued,
    /// Requested.
    Queued {
        /// When it was requested.
        since: Nanos,
    },
    /// Held.
    Held {
        /// The time slice's epoch.
        epoch: u64,
        /// When it was granted.
        since: Nanos,
        /// Whether a step of this time slice has begun.
        has_run: bool,
        /// Whether a peer waits for it.
        has_waiters: bool,
    },
}

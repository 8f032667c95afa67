//! A revoked loan until its borrower returns it.

use crate::ids::Nanos;
use crate::peers::loans::Nonce;

/// Maximum time before a borrower is notified again, nanoseconds.
pub(super) const ASK_BACKOFF_MAX_NS: u64 = 5_000_000_000;

/// A revoked loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingRevocation {
    /// The loan.
    pub nonce: Nonce,
    /// When its borrower was first notified.
    pub since: Nanos,
    /// When it is notified next.
    pub retry_at: Nanos,
    /// Pause after that notification, nanoseconds; doubles each time.
    pub pause_ns: u64,
}

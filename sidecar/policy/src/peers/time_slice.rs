//! Time slices (`Temporal`): orders the waiters, and decides when the holder releases its slice.
//!
//! No tenant starves: with n tenants and slices of at most Q, round robin bounds the wait by n Q, and priorities that
//! age after a slices bound it by (n + a) Q.

use super::Peer;
use crate::ids::Nanos;

/// Order of the waiters. All tenants of a GPU use the same. Directives name it, and sluice-agent adds the ageing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SliceOrder {
    /// The oldest ticket first.
    #[default]
    RoundRobin,
    /// The highest priority first, then the oldest ticket.
    Priority {
        /// Waiters that have waited for this number of other slices are first regardless of priority, the oldest ticket
        /// first.
        aging_slices: u64,
    },
}

/// A peer that waits for the time slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The peer.
    pub peer: Peer,
    /// Its position in the order of requests: drawn once for each slice, increasing.
    pub ticket: u64,
    /// Higher values are first.
    pub priority: i32,
    /// Number of slices granted when it drew the ticket.
    pub asked_at: u64,
}

impl Waiter {
    /// Returns the sort key; the smallest is next.
    fn queue_position(&self, order: SliceOrder, slices: u64) -> (i64, u64, Peer) {
        let urgency = match order {
            SliceOrder::RoundRobin => 0,
            SliceOrder::Priority { aging_slices } if slices.saturating_sub(self.asked_at) >= aging_slices => {
                i64::MIN
            }
            SliceOrder::Priority { .. } => -i64::from(self.priority),
        };
        (urgency, self.ticket, self.peer)
    }
}

/// Sorts the waiters, next one first. `slices` is the number of slices granted so far.
pub fn sort_waiters(waiters: &mut [Waiter], order: SliceOrder, slices: u64) {
    waiters.sort_unstable_by_key(|waiter| waiter.queue_position(order, slices));
}

/// The holder's decision at a step boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run the next step.
    Keep,
    /// Release the time slice.
    Release,
}

/// The holder's state at a step boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// When its slice began.
    pub started: Nanos,
    /// Whether a peer waits for the slice.
    pub has_waiters: bool,
    /// Whether it has a step to run.
    pub has_work: bool,
    /// Predicted duration of its next step, nanoseconds.
    pub predicted_step_ns: u64,
}

/// Bounds on the length of a slice while a peer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantum {
    min_ns: u64,
    max_ns: u64,
}

impl Quantum {
    /// Slices last at least `min_ns` while there is work, to limit hand-over costs, and at most `max_ns`.
    ///
    /// # Panics
    /// If `min_ns` is above `max_ns`, or `max_ns` is 0.
    pub fn new(min_ns: u64, max_ns: u64) -> Quantum {
        assert!(min_ns <= max_ns, "the minimum quantum of {min_ns} ns is at most the maximum of {max_ns} ns");
        assert!(max_ns > 0, "a time slice has a length");
        Quantum { min_ns, max_ns }
    }

    /// Returns the largest quantum, nanoseconds.
    pub const fn max_ns(self) -> u64 {
        self.max_ns
    }

    /// Returns the minimum length of a slice while there is work, nanoseconds.
    pub const fn min_ns(self) -> u64 {
        self.min_ns
    }

    /// Decides whether the holder continues. Every slice runs at least one step. It ends at the last boundary before
    /// the largest quantum, by prediction, but not before the minimum. It exceeds the largest quantum only by a
    /// prediction error, or if a step does not fit into [`Quantum::left_ns`].
    pub fn should_keep_slice(self, now: Nanos, holder: &Holder) -> Decision {
        if !holder.has_work {
            return Decision::Release;
        }
        let used_ns = now.since(holder.started);
        let fits = holder.predicted_step_ns <= self.left_ns(now, holder.started);
        if !holder.has_waiters || used_ns == 0 || used_ns < self.min_ns || fits {
            Decision::Keep
        } else {
            Decision::Release
        }
    }

    /// Returns the rest of the largest quantum, nanoseconds; a step of that size stays within it.
    pub fn left_ns(self, now: Nanos, started: Nanos) -> u64 {
        self.max_ns.saturating_sub(now.since(started))
    }
}

/// Returns the largest prefill whose step fits into `max_ns` by the estimate for one token; at least one token, so that
/// a prompt always progresses. Without an estimate (0) there is no limit.
pub fn largest_prefill_tokens(ns_per_token: u64, max_ns: u64) -> u32 {
    let tokens = max_ns.checked_div(ns_per_token).unwrap_or(u64::MAX);
    u32::try_from(tokens).unwrap_or(u32::MAX).max(1)
}

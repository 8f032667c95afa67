//! Turns (`Temporal`): who is next, and when the holder gives the turn up (DESIGN 8).
//!
//! Nobody starves: with n tenants and turns of at most Q, round robin makes nobody wait longer than n Q, and priorities that
//! age after a hand-overs nobody longer than (n + a) Q.

use super::Peer;
use crate::ids::Nanos;

/// Who is next. All tenants of a GPU use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnOrder {
    /// The oldest ticket.
    #[default]
    RoundRobin,
    /// The highest priority, of these the oldest ticket.
    Priority {
        /// Who has waited for so many turns of others goes first whatever its priority; of these the oldest ticket.
        aging_turns: u64,
    },
}

/// One that waits for the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Who.
    pub peer: Peer,
    /// Its place in the order of asking: drawn once for each turn, rising.
    pub ticket: u64,
    /// Higher goes first.
    pub priority: i32,
    /// How many turns there had been when it drew the ticket.
    pub asked_at: u64,
}

impl Waiter {
    /// Less goes first.
    fn queue_position(&self, order: TurnOrder, turns: u64) -> (i64, u64, Peer) {
        let urgency = match order {
            TurnOrder::RoundRobin => 0,
            TurnOrder::Priority { aging_turns } if turns.saturating_sub(self.asked_at) >= aging_turns => {
                i64::MIN
            }
            TurnOrder::Priority { .. } => -i64::from(self.priority),
        };
        (urgency, self.ticket, self.peer)
    }
}

/// Sorts those who wait, who is next first. `turns`: how many there have been.
pub fn sort_waiters(waiters: &mut [Waiter], order: TurnOrder, turns: u64) {
    waiters.sort_unstable_by_key(|waiter| waiter.queue_position(order, turns));
}

/// What the holder does at a step boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It runs its next step.
    Keep,
    /// It gives the turn up.
    Release,
}

/// The holder at a step boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// When its turn began.
    pub started: Nanos,
    /// Whether somebody else waits for the turn.
    pub has_waiters: bool,
    /// Whether it has a step to run.
    pub has_work: bool,
    /// How long its next step will take, nanoseconds.
    pub predicted_step_ns: u64,
}

/// How long a turn lasts while somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantum {
    min_ns: u64,
    max_ns: u64,
}

impl Quantum {
    /// `min_ns`: not shorter while there is work, so that hand-overs cost little. `max_ns`: not longer.
    ///
    /// # Panics
    /// If the least is above the largest, or the largest is 0.
    pub fn new(min_ns: u64, max_ns: u64) -> Quantum {
        assert!(min_ns <= max_ns, "a least quantum of {min_ns} ns is within the largest of {max_ns} ns");
        assert!(max_ns > 0, "a turn lasts");
        Quantum { min_ns, max_ns }
    }

    /// The largest quantum, nanoseconds.
    pub const fn max_ns(self) -> u64 {
        self.max_ns
    }

    /// No turn is given up earlier while there is work, nanoseconds.
    pub const fn min_ns(self) -> u64 {
        self.min_ns
    }

    /// Whether the holder goes on. A turn always has its first step, and ends at the last boundary before the largest
    /// quantum by the prediction, but not before the least one. It is longer than the largest quantum only by an error of
    /// the prediction, or where a step does not fit [`Quantum::left_ns`].
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

    /// What is left of the largest quantum: a step that is sized for it keeps within it. Nanoseconds.
    pub fn left_ns(self, now: Nanos, started: Nanos) -> u64 {
        self.max_ns.saturating_sub(now.since(started))
    }
}

/// The largest prefill whose step fits `max_ns`, by an estimate for one token; at least a token, so that a prompt goes on
/// whatever the estimate says. Without an estimate (0) there is no limit.
pub fn largest_prefill_tokens(ns_per_token: u64, max_ns: u64) -> u32 {
    let tokens = max_ns.checked_div(ns_per_token).unwrap_or(u64::MAX);
    u32::try_from(tokens).unwrap_or(u32::MAX).max(1)
}

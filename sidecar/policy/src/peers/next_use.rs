//! When a tenant is needed next, estimated from its arrivals: the furthest next use is Belady's victim.
//!
//! Only arrivals that find the tenant idle count, by how long they found it so. From what is idle for `t` its next request is
//! expected as those idle periods ended that lasted longer than `t`: after the median of what was left of them then. So pauses
//! within a burst say nothing once it is over, a period ends when its like did, and one long night is one of many. Where none
//! lasted longer, it is expected after as long again as it has been idle.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::ids::Nanos;

/// Idle periods that have to end before they tell anything. Fewer are no data.
pub const PERIODS_MIN: usize = 3;

/// The last so many are looked at.
pub const PERIODS_KEPT: usize = 16;

/// Whether a tenant has requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Use {
    /// It had none yet.
    #[default]
    Never,
    Busy,
    IdleSince(Nanos),
}

/// A tenant's idle periods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextUse {
    now: Use,
    /// How long the last ones were, oldest first, nanoseconds.
    periods_ns: VecDeque<u64>,
}

impl NextUse {
    /// Whether the tenant has requests, told after everything that may change it. The time before its first request is no
    /// idle period: it begins with the process, not with a use.
    pub fn observe(&mut self, now: Nanos, busy: bool) {
        match (self.now, busy) {
            (Use::Busy, false) => self.now = Use::IdleSince(now),
            (Use::Never, true) => self.now = Use::Busy,
            (Use::IdleSince(since), true) => {
                self.now = Use::Busy;
                self.ended(now.since(since));
            }
            (Use::Busy, true) | (Use::Never | Use::IdleSince(_), false) => {}
        }
    }

    fn ended(&mut self, period_ns: u64) {
        if self.periods_ns.len() == PERIODS_KEPT {
            self.periods_ns.pop_front();
        }
        self.periods_ns.push_back(period_ns);
    }

    /// In how long it is needed, nanoseconds: 0 while it has requests; none without data.
    pub fn expected_ns(&self, now: Nanos) -> Option<u64> {
        match self.now {
            Use::Never => None,
            Use::Busy => Some(0),
            Use::IdleSince(since) => {
                (self.periods_ns.len() >= PERIODS_MIN).then(|| self.left_ns(now.since(since)))
            }
        }
    }

    /// What is left of a period that has lasted for `idle_ns`.
    fn left_ns(&self, idle_ns: u64) -> u64 {
        let mut longer: Vec<u64> = self.periods_ns.iter().copied().filter(|ns| *ns > idle_ns).collect();
        longer.sort_unstable();
        longer.get(longer.len() / 2).map_or(idle_ns, |median_ns| median_ns - idle_ns)
    }
}

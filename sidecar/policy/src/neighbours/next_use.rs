//! When a tenant is needed next, estimated from its arrivals: the furthest next use is Belady's victim.
//!
//! Only arrivals that find the tenant idle count: those within a burst say nothing of when the next burst comes. From what is
//! idle for `t` after idle periods of `m` on average, the next request is expected in max(m, t): without memory (Poisson) it is
//! m whatever t is, and who has been idle for longer than ever is not expected soon.

use crate::ewma::Ewma;
use crate::ids::Nanos;

/// Idle periods that have to end before they tell anything. Fewer are no data.
pub const PERIODS_MIN: u32 = 3;

/// A tenant's idle periods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextUse {
    /// Since when it has no requests; none while it has some, and before it had any.
    idle_since: Option<Nanos>,
    busy: bool,
    /// Idle periods that ended.
    periods: u32,
    /// How long they were, nanoseconds.
    period_ns: Ewma,
}

impl NextUse {
    /// Whether the tenant has requests, told after everything that may change it. The time before its first request is no
    /// idle period: it begins with the process, not with a use.
    pub fn observe(&mut self, now: Nanos, busy: bool) {
        if busy == self.busy {
            return;
        }
        self.busy = busy;
        match (busy, self.idle_since.take()) {
            (false, _) => self.idle_since = Some(now),
            (true, Some(since)) => {
                self.periods = self.periods.saturating_add(1);
                self.period_ns.observe(now.since(since));
            }
            (true, None) => {}
        }
    }

    /// In how long its next request is expected, nanoseconds; none while it has requests, and without data.
    pub fn expected_ns(&self, now: Nanos) -> Option<u64> {
        let idle_ns = now.since(self.idle_since?);
        let period_ns = self.period_ns.value().filter(|_| self.periods >= PERIODS_MIN)?;
        Some(period_ns.max(idle_ns))
    }
}

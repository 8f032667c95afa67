//! Predicts a tenant's next use from its arrivals: the tenant with the furthest next use is Belady's victim.
//!
//! Only arrivals that end an idle period count. For a tenant idle for `t`, the prediction is the median remaining
//! length of the past idle periods that were longer than `t`. Pauses within a burst thus have no effect once the burst
//! is over, and one long night is only one period of many. If no period was longer, the prediction is another `t`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::ids::Nanos;

/// Ended idle periods required for a prediction.
pub const PERIODS_MIN: usize = 3;

/// Number of latest idle periods kept.
pub const PERIODS_KEPT: usize = 16;

/// Whether a tenant has requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Use {
    /// No request yet.
    #[default]
    Never,
    Busy,
    IdleSince(Nanos),
}

/// A tenant's idle periods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextUse {
    now: Use,
    /// Lengths of the latest idle periods, oldest first, nanoseconds.
    periods_ns: VecDeque<u64>,
}

impl NextUse {
    /// Records whether the tenant has requests; call it after every event that may change that. The time before the
    /// first request is not an idle period, because it starts with the process and not with a use.
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

    /// Returns the predicted time until the next use, nanoseconds: 0 while the tenant has requests, `None` without
    /// data.
    pub fn expected_ns(&self, now: Nanos) -> Option<u64> {
        match self.now {
            Use::Never => None,
            Use::Busy => Some(0),
            Use::IdleSince(since) => {
                (self.periods_ns.len() >= PERIODS_MIN).then(|| self.left_ns(now.since(since)))
            }
        }
    }

    /// Returns the predicted rest of a period that has lasted for `idle_ns`.
    fn left_ns(&self, idle_ns: u64) -> u64 {
        let mut longer: Vec<u64> = self.periods_ns.iter().copied().filter(|ns| *ns > idle_ns).collect();
        longer.sort_unstable();
        longer.get(longer.len() / 2).map_or(idle_ns, |median_ns| median_ns - idle_ns)
    }
}

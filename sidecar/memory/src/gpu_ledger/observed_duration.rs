//! Measures how long this process has observed an unchanged state.

use super::faults::LedgerFaults;

/// Longest countable time between two observations, nanoseconds. This process may have been stopped between
/// them, and all others with it.
const MAX_COUNTED_NS: u64 = 20_000_000;

/// Observations of one state, identified by two numbers.
#[derive(Debug, Default)]
pub(super) struct ObservedDuration {
    key: Option<(u64, u64)>,
    last_observed_ns: u64,
    observed_ns: u64,
}

impl ObservedDuration {
    /// Records an observation of `at` at time `now_ns`. Returns how long the state has been observed,
    /// nanoseconds; 0 at the first observation.
    pub(super) fn observe(&mut self, at: (u64, u64), now_ns: u64, faults: &LedgerFaults) -> u64 {
        let since_ns = now_ns.saturating_sub(self.last_observed_ns);
        let counted_ns = if faults.count_own_pauses { since_ns } else { since_ns.min(MAX_COUNTED_NS) };
        let before_ns = (self.key == Some(at)).then_some(self.observed_ns);
        self.observed_ns = before_ns.map_or(0, |seen_ns| seen_ns.saturating_add(counted_ns));
        (self.key, self.last_observed_ns) = (Some(at), now_ns);
        self.observed_ns
    }

    /// Ends the observation because the state no longer holds.
    pub(super) fn reset(&mut self) {
        self.key = None;
    }
}

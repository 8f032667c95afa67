//! How long this process has seen that something stays as it is.

use super::faults::LedgerFaults;

/// At most so much of the time between two looks counts, nanoseconds: this process may have been stopped meanwhile, and
/// all others with it.
const MAX_COUNTED_NS: u64 = 20_000_000;

/// Looks at one thing, which is named by two numbers.
#[derive(Debug, Default)]
pub(super) struct ObservedDuration {
    key: Option<(u64, u64)>,
    last_observed_ns: u64,
    observed_ns: u64,
}

impl ObservedDuration {
    /// A look at `at`, at the time `now_ns`. How long it has been seen by now, nanoseconds; 0 at the first look.
    pub(super) fn observe(&mut self, at: (u64, u64), now_ns: u64, faults: &LedgerFaults) -> u64 {
        let since_ns = now_ns.saturating_sub(self.last_observed_ns);
        let counted_ns = if faults.count_own_pauses { since_ns } else { since_ns.min(MAX_COUNTED_NS) };
        let before_ns = (self.key == Some(at)).then_some(self.observed_ns);
        self.observed_ns = before_ns.map_or(0, |seen_ns| seen_ns.saturating_add(counted_ns));
        (self.key, self.last_observed_ns) = (Some(at), now_ns);
        self.observed_ns
    }

    /// It is not so any more.
    pub(super) fn reset(&mut self) {
        self.key = None;
    }
}

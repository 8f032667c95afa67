//! Fetches of KV that failed in a row.

use crate::weights::FILL_RETRIES;

/// Fetches in a row that may fail before their KV is given up.
const FETCH_RETRIES: u32 = FILL_RETRIES;
/// Fetches in a row that may fail before the tenant counts as failed.
pub const FETCH_FAILURES: u32 = 2 * (FETCH_RETRIES + 1);

/// What follows a failed fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The fetch is ordered again.
    Retry,
    /// The KV in buffers is given up; empty fetches go on.
    GiveUp,
    /// The tenant has failed.
    Fail,
}

/// Fetches that failed in a row. Empty fetches, which copy nothing because no request has the layer offloaded, are
/// counted separately: their success does not show that others would succeed, and their failure loses no KV.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchFailures {
    copies: u32,
    empty: u32,
}

impl FetchFailures {
    /// Records a fetch that succeeded; `copies` is false for an empty one.
    pub fn on_done(&mut self, copies: bool) {
        *self.count(copies) = 0;
    }

    /// Records a fetch that failed. Returns what follows.
    pub fn on_failed(&mut self, copies: bool) -> AfterFailure {
        let failures = self.count(copies);
        *failures += 1;
        match *failures {
            failures if failures > FETCH_FAILURES => AfterFailure::Fail,
            failures if copies && failures == FETCH_RETRIES + 1 => AfterFailure::GiveUp,
            _ => AfterFailure::Retry,
        }
    }

    fn count(&mut self, copies: bool) -> &mut u32 {
        if copies { &mut self.copies } else { &mut self.empty }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn after(failures: &mut FetchFailures, copies: bool) -> Vec<AfterFailure> {
        (0..=FETCH_FAILURES).map(|_| failures.on_failed(copies)).collect()
    }

    #[test]
    fn repeated_copy_failures_fail_tenant() {
        let seen = after(&mut FetchFailures::default(), true);
        let at = |what| seen.iter().position(|one| *one == what);
        assert_eq!(at(AfterFailure::GiveUp), Some(FETCH_RETRIES as usize));
        assert_eq!(seen.iter().filter(|one| **one == AfterFailure::GiveUp).count(), 1);
        assert_eq!(at(AfterFailure::Fail), Some(FETCH_FAILURES as usize));
    }

    #[test]
    fn empty_fetches_lose_no_kv_and_count_apart() {
        let mut failures = FetchFailures::default();
        (0..FETCH_RETRIES).for_each(|_| assert_eq!(failures.on_failed(true), AfterFailure::Retry));
        let seen = after(&mut failures, false);
        assert!(!seen.contains(&AfterFailure::GiveUp));
        assert_eq!(seen.last(), Some(&AfterFailure::Fail));
        failures.on_done(false);
        assert_eq!(failures.on_failed(true), AfterFailure::GiveUp, "an empty fetch proves nothing");
    }
}

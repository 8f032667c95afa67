//! Delays of a supervisor before a restart: the same everywhere, so that a chain of supervisors (`sluice up`,
//! sidecar, engine) recovers in a known time.

use std::time::Duration;

use sluice_common::back_off;

/// First wait.
pub const INITIAL_BACKOFF: Duration = Duration::from_millis(50);
/// Longest wait: each is twice the one before, up to this.
pub const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// What lived this long was not started in vain: the waits begin anew.
pub const RESET_AFTER: Duration = Duration::from_secs(10);

/// The waits of one supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackOff(back_off::BackOff);

impl Default for BackOff {
    fn default() -> Self {
        BackOff(back_off::BackOff::new(INITIAL_BACKOFF, MAX_BACKOFF))
    }
}

impl BackOff {
    /// How long to wait after a life of `lived`.
    pub fn next_delay(&mut self, lived: Duration) -> Duration {
        if lived >= RESET_AFTER {
            self.0.reset();
        }
        self.0.next_delay()
    }
}

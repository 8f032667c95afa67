//! Figures of hangs: engines that exceeded a deadline, and turns that a tenant held past its own.

use super::Metrics;

impl Metrics {
    /// An engine exceeded its deadline.
    pub fn on_engine_hung(&self) {
        self.own.engine_hangs.inc();
    }

    /// This tenant took the turn from a holder that was past its deadline.
    pub fn on_turn_taken_over(&self) {
        self.own.turn_takeovers.inc();
    }

    /// This tenant skipped another in the queue for the turn.
    pub fn on_turn_skipped(&self) {
        self.own.turn_skips.inc();
    }

    /// `total` sidecars of this tenant hung and were killed before this one started.
    pub fn add_sidecar_hangs(&self, total: u64) {
        self.own.sidecar_hangs.inc_by(total);
    }

    /// Another tenant took the turn from this one, which was past its deadline.
    pub fn on_turn_overtaken(&self) {
        self.own.turns_overtaken.inc();
    }

    /// The holder of the turn is past its deadline by `seconds`; 0 = it is not, or the turn is free.
    pub fn set_turn_holder_overdue(&self, seconds: f64) {
        self.own.turn_holder_overdue.set(seconds);
    }
}

//! Metrics of hangs: engines that exceeded a deadline, and time slices held past theirs.

use super::Metrics;

impl Metrics {
    /// Records an engine that exceeded its deadline.
    pub fn on_engine_hung(&self) {
        self.own.engine_hangs.inc();
    }

    /// Records that this tenant took over the time slice from a holder past its deadline.
    pub fn on_slice_taken_over(&self) {
        self.own.slice_takeovers.inc();
    }

    /// Records that this tenant skipped another in the queue for the time slice.
    pub fn on_slice_skipped(&self) {
        self.own.slice_skips.inc();
    }

    /// Adds `total` earlier sidecars of this tenant that hung and were killed.
    pub fn add_sidecar_hangs(&self, total: u64) {
        self.own.sidecar_hangs.inc_by(total);
    }

    /// Records that another tenant took over the time slice from this one, which was past its deadline.
    pub fn on_slice_overtaken(&self) {
        self.own.time_slice_losses.inc();
    }

    /// Sets how many seconds the holder of the time slice is past its deadline. 0 if it is not, or if the time slice is
    /// free.
    pub fn set_slice_holder_overdue(&self, seconds: f64) {
        self.own.slice_holder_overdue.set(seconds);
    }
}

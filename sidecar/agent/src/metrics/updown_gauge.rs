//! Gauge that changes by increments.

use prometheus_client::metrics::gauge::Gauge;

/// A gauge.
#[derive(Clone, Debug, Default)]
pub struct UpDownGauge(Gauge);

impl UpDownGauge {
    /// Adds `by`, which may be negative.
    pub fn add(&self, by: i64) {
        self.0.inc_by(by);
    }

    /// Returns the current value.
    pub fn get(&self) -> i64 {
        self.0.get()
    }

    /// Returns the metric to register, which shares the value.
    pub(super) fn gauge(&self) -> Gauge {
        self.0.clone()
    }
}

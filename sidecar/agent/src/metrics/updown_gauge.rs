//! A gauge that goes up and down by what came and went.

use prometheus_client::metrics::gauge::Gauge;

/// A level.
#[derive(Clone, Debug, Default)]
pub struct UpDownGauge(Gauge);

impl UpDownGauge {
    /// Raises it, or lowers it when negative.
    pub fn add(&self, by: i64) {
        self.0.inc_by(by);
    }

    /// Now.
    pub fn get(&self) -> i64 {
        self.0.get()
    }

    /// The metric to register; shares its value.
    pub(super) fn gauge(&self) -> Gauge {
        self.0.clone()
    }
}

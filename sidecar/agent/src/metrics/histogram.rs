//! Histogram of durations for Prometheus. It records many equal samples at once and needs no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Upper bounds in seconds: three per decade from 100 us to 500 s.
const BUCKET_BOUNDS: [f64; 21] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0,
    50.0, 100.0, 200.0, 500.0,
];

/// Histogram of durations. Clones share their samples.
#[derive(Clone, Debug, Default)]
pub struct DurationHistogram(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// One count per bound, and one for samples above all bounds.
    counts: [AtomicU64; BUCKET_BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// Records `count` samples of `value`.
    pub fn record(&self, value: Duration, count: u64) {
        let seconds = value.as_secs_f64();
        let bucket = BUCKET_BOUNDS.partition_point(|bound| *bound < seconds);
        self.0.counts[bucket].fetch_add(count, Relaxed);
        let ns = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX).saturating_mul(count);
        self.0.sum_ns.fetch_add(ns, Relaxed);
    }
}

impl EncodeMetric for DurationHistogram {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), std::fmt::Error> {
        let bounds = BUCKET_BOUNDS.into_iter().chain([f64::INFINITY]);
        let counts: Vec<_> = self.0.counts.iter().map(|count| count.load(Relaxed)).collect();
        let buckets: Vec<_> = bounds.zip(counts.iter().copied()).collect();
        let sum = Duration::from_nanos(self.0.sum_ns.load(Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

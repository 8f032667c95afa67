//! Serves `/metrics`: updates the gauges from the scheduler's state and adds the metrics of a proxied engine.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::metrics::Metrics;
use crate::proxied_engine::engine_metrics::EngineMetrics;
use crate::scheduler_handle::SchedulerHandle;

/// Sources of the metrics.
#[derive(Clone, Debug)]
pub struct MetricsScrape {
    /// Handle to the scheduler, for its state.
    pub service: SchedulerHandle,
    /// Metrics of this sidecar.
    pub metrics: Arc<Metrics>,
    engine: Option<EngineMetrics>,
}

impl MetricsScrape {
    /// Creates a scrape of the sidecar's own metrics only.
    pub fn native(service: SchedulerHandle, metrics: Arc<Metrics>) -> MetricsScrape {
        MetricsScrape { service, metrics, engine: None }
    }

    /// Creates a scrape that includes the metrics of a proxied engine.
    pub fn proxied(service: SchedulerHandle, metrics: Arc<Metrics>, engine: EngineMetrics) -> MetricsScrape {
        MetricsScrape { service, metrics, engine: Some(engine) }
    }

    /// Returns the current metrics.
    pub async fn respond(&self) -> Response {
        if let Some(state) = self.service.state().await {
            self.metrics.set_state(&state);
        }
        let (kind, text) = match &self.engine {
            None => ("application/openmetrics-text; version=1.0.0; charset=utf-8", self.metrics.encode()),
            Some(engine) => {
                ("text/plain; version=0.0.4; charset=utf-8", engine.merge_with(&self.metrics.encode()).await)
            }
        };
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    }
}

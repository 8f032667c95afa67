//! The metrics as they are read: fresh, and with those of an engine that has its own.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::metrics::Metrics;
use crate::proxied_engine::engine_metrics::EngineMetrics;
use crate::scheduler_handle::SchedulerHandle;

/// Whoever has the state and the figures.
#[derive(Clone, Debug)]
pub struct MetricsScrape {
    /// Has the state.
    pub service: SchedulerHandle,
    /// The figures.
    pub metrics: Arc<Metrics>,
    engine: Option<EngineMetrics>,
}

impl MetricsScrape {
    /// All figures are our own.
    pub fn native(service: SchedulerHandle, metrics: Arc<Metrics>) -> MetricsScrape {
        MetricsScrape { service, metrics, engine: None }
    }

    /// The engine has figures too.
    pub fn proxied(service: SchedulerHandle, metrics: Arc<Metrics>, engine: EngineMetrics) -> MetricsScrape {
        MetricsScrape { service, metrics, engine: Some(engine) }
    }

    /// The metrics, fresh.
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

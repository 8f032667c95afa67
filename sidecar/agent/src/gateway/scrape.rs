//! The metrics as they are read: fresh, and with those of an engine that has its own.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::metrics::Metrics;
use crate::proxy::figures::EngineFigures;
use crate::service::Service;

/// Whoever has the state and the figures.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Has the state.
    pub service: Service,
    /// The figures.
    pub metrics: Arc<Metrics>,
    engine: Option<EngineFigures>,
}

impl Scrape {
    /// All figures are our own.
    pub fn own(service: Service, metrics: Arc<Metrics>) -> Scrape {
        Scrape { service, metrics, engine: None }
    }

    /// The engine has figures too.
    pub fn beside(service: Service, metrics: Arc<Metrics>, engine: EngineFigures) -> Scrape {
        Scrape { service, metrics, engine: Some(engine) }
    }

    /// The metrics, fresh.
    pub async fn answer(&self) -> Response {
        if let Some(state) = self.service.state().await {
            self.metrics.set_state(&state);
        }
        let (kind, text) = match &self.engine {
            None => ("application/openmetrics-text; version=1.0.0; charset=utf-8", self.metrics.encode()),
            Some(engine) => {
                ("text/plain; version=0.0.4; charset=utf-8", engine.beside(&self.metrics.encode()).await)
            }
        };
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    }
}

//! Health and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::world::World;

/// What the answers are made of.
#[derive(Clone)]
pub struct Served {
    /// Figures.
    pub metrics: Metrics,
    /// What is watched.
    pub world: Arc<World>,
    /// What waits.
    pub queue: Arc<Queue>,
    /// Watches that have not listed everything yet.
    pub pending: Arc<AtomicUsize>,
}

/// `/healthz`, `/readyz` and `/metrics`. A replica that waits for the Lease is ready too: it could take over.
pub fn router(served: Served) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(served)
}

async fn ready(State(served): State<Served>) -> (StatusCode, String) {
    match served.pending.load(Ordering::SeqCst) {
        0 => (StatusCode::OK, "ok\n".to_owned()),
        left => (StatusCode::SERVICE_UNAVAILABLE, format!("{left} watches have not listed everything yet\n")),
    }
}

async fn metrics(State(served): State<Served>) -> impl IntoResponse {
    let text = served.metrics.text(&served.world, &served.queue);
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

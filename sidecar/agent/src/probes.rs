//! Probes (`:8002`): whether to start the engine, to route, to restart, and a copy of the metrics. Nothing secret, nothing else.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

use crate::gateway::{readiness, scrape};
use crate::metrics::Metrics;
use crate::service::{Service, Status};

type Shared = State<(Service, Arc<Metrics>)>;

/// The routes of `:8002`.
pub fn router(service: Service, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/startup", get(startup))
        .route("/ready", get(|State((service, _)): Shared| async move { readiness(&service) }))
        .route("/live", get(|| async { (StatusCode::OK, "live\n") }))
        .route(
            "/metrics",
            get(|State((service, metrics)): Shared| async move { scrape(&service, &metrics).await }),
        )
        .with_state((service, metrics))
}

/// Started = engines may connect: their socket listens before this one does. Not whether one has come: a pod starts its
/// engine only after this says yes. A tenant that has failed is not started.
async fn startup(State((service, _)): Shared) -> (StatusCode, String) {
    match &*service.status().borrow() {
        Status::Loading | Status::Serving | Status::EngineLost => (StatusCode::OK, "started\n".into()),
        Status::Failed(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

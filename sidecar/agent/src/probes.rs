//! Probes (`:8002`): whether to wait, to route, to restart, and a copy of the metrics. Nothing secret, nothing else.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
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

/// Started = no longer loading, well or badly.
async fn startup(State((service, _)): Shared) -> Response {
    use axum::response::IntoResponse;
    match *service.status().borrow() {
        Status::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading\n").into_response(),
        Status::Serving | Status::EngineLost | Status::Failed(_) => {
            (StatusCode::OK, "started\n").into_response()
        }
    }
}

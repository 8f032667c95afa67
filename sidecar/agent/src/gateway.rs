//! The OpenAI-compatible API (`:8000`): routes, authorization, and limits per client.

pub mod bearer_token;
pub mod body;
mod context;
pub mod detok;
pub mod endpoint;
pub mod endpoints;
pub mod error;
mod idle_timeout;
pub mod keys;
pub mod limits;
pub mod logprobs;
pub mod messages;
pub mod params;
pub mod prompt;
pub mod response;
pub mod scrape;
pub mod serve;
pub mod timeouts;
pub mod token_stream;
pub mod values;

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

use self::bearer_token::bearer_token;
pub use self::context::Gateway;
use self::error::ApiError;
pub use self::keys::ApiKeys;
use self::scrape::MetricsScrape;
use crate::scheduler_handle::{SchedulerHandle, Status};

/// Prefix of headers that upstream routers set and clients must not set.
const INTERNAL_HEADERS: &str = "x-llm-d-";

impl Gateway {
    /// Returns the routes of `:8000`.
    pub fn router(self: Arc<Self>) -> Router {
        let api = Router::new()
            .route("/v1/completions", post(endpoints::completions))
            .route("/v1/chat/completions", post(endpoints::chat))
            .route("/v1/models", get(models))
            .route("/v1/models/{*id}", get(model))
            .with_state(self.clone());
        api_router(
            api,
            self.api_keys.clone(),
            MetricsScrape::native(self.service.clone(), self.metrics.clone()),
        )
    }
}

/// Returns the routes of `:8000`: `api`, which needs a key, and the open routes.
pub fn api_router(api: Router, keys: ApiKeys, scrape: MetricsScrape) -> Router {
    let open = Router::new()
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/ready", get(async |State(scrape): State<MetricsScrape>| readiness(&scrape.service)))
        .route("/metrics", get(async |State(scrape): State<MetricsScrape>| scrape.respond().await))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .with_state(scrape);
    open.merge(api.route_layer(middleware::from_fn_with_state(keys, authorize)))
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .fallback(|request: Request| async move { ApiError::route_not_found(request.uri().path()) })
        .layer(middleware::from_fn(strip_internal_headers))
}

async fn strip_internal_headers(mut request: Request, next: Next) -> Response {
    let names: Vec<_> =
        request.headers().keys().filter(|n| n.as_str().starts_with(INTERNAL_HEADERS)).cloned().collect();
    names.into_iter().for_each(|name| drop(request.headers_mut().remove(name)));
    next.run(request).await
}

async fn authorize(State(keys): State<ApiKeys>, request: Request, next: Next) -> Response {
    if keys.is_authorized(bearer_token(request.headers())) {
        return next.run(request).await;
    }
    ApiError::unauthorized().into_response()
}

/// Returns the readiness: whether the tenant accepts or holds a request and eventually answers it.
pub fn readiness(service: &SchedulerHandle) -> (StatusCode, String) {
    match &*service.status().borrow() {
        Status::Serving | Status::EngineLost => (StatusCode::OK, "ready\n".into()),
        Status::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading\n".into()),
        Status::Failed(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn model_json(gateway: &Gateway, name: &str) -> serde_json::Value {
    let max_model_len = gateway.max_model_tokens;
    json!({"id": name, "object": "model", "created": gateway.started, "owned_by": "sluice",
        "root": gateway.served_names[0], "max_model_len": max_model_len})
}

async fn models(State(gateway): State<Arc<Gateway>>) -> Json<serde_json::Value> {
    let data: Vec<_> = gateway.served_names.iter().map(|name| model_json(&gateway, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

async fn model(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
) -> Result<Json<serde_json::Value>, ApiError> {
    match gateway.served_names.contains(&id) {
        true => Ok(Json(model_json(&gateway, &id))),
        false => Err(ApiError::model_not_found(&id)),
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use axum::http::HeaderMap;

    use super::*;

    #[tokio::test]
    async fn internal_headers_are_stripped() {
        let echo = |headers: HeaderMap| async move {
            headers.keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>().join(" ")
        };
        let app = Router::new().route("/", get(echo)).layer(middleware::from_fn(strip_internal_headers));
        let request = Request::builder()
            .uri("/")
            .header("X-LLM-D-Route", "elsewhere")
            .header("x-llm-d-prefill", "a")
            .header("x-llm-d-prefill", "b")
            .header("x-llm", "kept");
        let response = app.oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        assert_eq!(bytes, "x-llm");
    }
}

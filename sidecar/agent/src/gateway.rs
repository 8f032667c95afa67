//! The OpenAI-compatible API (`:8000`): routes, who may call them, and what a client may cost.

pub mod answer;
pub mod body;
pub mod detok;
pub mod endpoints;
pub mod error;
pub mod generate;
mod impatient;
pub mod keys;
pub mod logprobs;
pub mod messages;
pub mod open;
pub mod params;
pub mod prompt;
pub mod scrape;
pub mod serve;
pub mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use sluice_policy::token_deposit::Pacing;
use sluice_wire::config::LimitsConfig;

use self::answer::Kind;
use self::body::TakesBodies;
use self::error::ApiError;
pub use self::keys::Keys;
use self::open::OpenRequests;
use self::scrape::Scrape;
use crate::metrics::Metrics;
use crate::model::text::Text;
use crate::service::{Service, Status};

/// What the gateway is made of.
pub struct Gateway {
    /// Tokens and texts.
    pub text: Arc<Text>,
    /// The scheduler.
    pub service: Service,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// Names of the model; the first is reported.
    pub names: Vec<String>,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Longest sequence.
    pub max_model_tokens: u32,
    /// Limits on clients.
    pub limits: LimitsConfig,
    /// Pace of streams.
    pub stream_pacing: Pacing,
    /// Keys.
    pub api_keys: Keys,
    /// Requests open now.
    pub open: OpenRequests,
    /// Unix time of the start, seconds.
    pub started: u64,
    /// Number of the next answer, for its id. Begins at random: ids differ between tenants and between runs.
    pub next_answer: AtomicU64,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are not for logs.
        f.debug_struct("Gateway")
            .field("names", &self.names)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Header prefix that routers in front of us set and clients must not.
const INTERNAL_HEADERS: &str = "x-llm-d-";

impl TakesBodies for Gateway {
    fn max_body_bytes(&self) -> u64 {
        self.limits.max_body_bytes
    }

    fn open(&self) -> &OpenRequests {
        &self.open
    }
}

impl Gateway {
    /// Pace of an answer: only streams are paced.
    pub fn pacing(&self, stream: bool) -> Pacing {
        if stream { self.stream_pacing } else { Pacing::Immediate }
    }

    fn next_id(&self, kind: Kind) -> String {
        let prefix = match kind {
            Kind::Completion => "cmpl",
            Kind::Chat => "chatcmpl",
        };
        format!("{prefix}-{:016x}", self.next_answer.fetch_add(1, Ordering::Relaxed))
    }

    /// Now, as OpenAI counts it.
    pub fn unix_seconds() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }

    /// The routes of `:8000`.
    pub fn router(self: Arc<Self>) -> Router {
        let api = Router::new()
            .route("/v1/completions", post(endpoints::completions))
            .route("/v1/chat/completions", post(endpoints::chat))
            .route("/v1/models", get(models))
            .route("/v1/models/{*id}", get(model))
            .with_state(self.clone());
        front(api, self.api_keys.clone(), Scrape::own(self.service.clone(), self.metrics.clone()))
    }
}

/// The routes of `:8000`: `api` for who has a key, and what everybody may ask.
pub fn front(api: Router, keys: Keys, scrape: Scrape) -> Router {
    let open = Router::new()
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/ready", get(async |State(scrape): State<Scrape>| readiness(&scrape.service)))
        .route("/metrics", get(async |State(scrape): State<Scrape>| scrape.answer().await))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .with_state(scrape);
    open.merge(api.route_layer(middleware::from_fn_with_state(keys, authorise)))
        .method_not_allowed_fallback(|| async { ApiError::wrong_method() })
        .fallback(|request: Request| async move { ApiError::no_route(request.uri().path()) })
        .layer(middleware::from_fn(strip_internal_headers))
}

async fn strip_internal_headers(mut request: Request, next: Next) -> Response {
    let names: Vec<_> =
        request.headers().keys().filter(|n| n.as_str().starts_with(INTERNAL_HEADERS)).cloned().collect();
    names.into_iter().for_each(|name| drop(request.headers_mut().remove(name)));
    next.run(request).await
}

async fn authorise(State(keys): State<Keys>, request: Request, next: Next) -> Response {
    if keys.admit(bearer(request.headers())) {
        return next.run(request).await;
    }
    ApiError::unauthorised().into_response()
}

/// The bearer token of a request. The scheme's name has any case, and blanks may follow it (RFC 9110, 11.4).
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_matches(' '))
}

/// Compares without telling by its time how much was right.
pub fn same_secret(a: &str, b: &str) -> bool {
    let differences = a.bytes().zip(b.bytes()).fold(0, |found, (x, y)| found | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

/// Ready = can accept or hold a request and answer it in the end.
pub fn readiness(service: &Service) -> (StatusCode, String) {
    match &*service.status().borrow() {
        Status::Serving | Status::EngineLost => (StatusCode::OK, "ready\n".into()),
        Status::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading\n".into()),
        Status::Failed(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn model_json(gateway: &Gateway, name: &str) -> serde_json::Value {
    let max_model_len = gateway.max_model_tokens;
    json!({"id": name, "object": "model", "created": gateway.started, "owned_by": "sluice",
        "root": gateway.names[0], "max_model_len": max_model_len})
}

async fn models(State(gateway): State<Arc<Gateway>>) -> Json<serde_json::Value> {
    let data: Vec<_> = gateway.names.iter().map(|name| model_json(&gateway, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

async fn model(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
) -> Result<Json<serde_json::Value>, ApiError> {
    match gateway.names.contains(&id) {
        true => Ok(Json(model_json(&gateway, &id))),
        false => Err(ApiError::no_model(&id)),
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn headers_of_the_router_in_front_are_stripped_and_others_are_not() {
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

    #[test]
    fn a_bearer_token_is_read_whatever_the_case_of_its_scheme_and_the_blanks_before_it() {
        let shown = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(str::to_owned)
        };
        for value in
            ["Bearer sk-one", "bearer sk-one", "BEARER sk-one", "Bearer  sk-one", "bEaReR    sk-one "]
        {
            assert_eq!(shown(value).as_deref(), Some("sk-one"), "{value:?}");
        }
        for value in ["sk-one", "Bearersk-one", "Basic sk-one", "Bearer", " Bearer sk-one"] {
            assert_eq!(shown(value), None, "{value:?}");
        }
        assert_eq!(shown("Bearer  ").as_deref(), Some(""));
        assert_eq!(shown("Bearer sk one").as_deref(), Some("sk one"), "one token, which is no key");
    }

    #[test]
    fn secrets_are_the_same_only_when_they_are() {
        assert!(same_secret("abc", "abc"));
        for other in ["", "ab", "abd", "abcd", "Abc"] {
            assert!(!same_secret(other, "abc") && !same_secret("abc", other), "{other}");
        }
    }
}

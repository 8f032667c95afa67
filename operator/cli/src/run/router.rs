//! Serves all models on one port: forwards a request to the model that its document names, and streams the answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Largest request body, bytes: the limit of a sidecar.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Most memory of all buffered bodies, KiB; further requests wait. A body is buffered from its first byte
/// until its model begins to answer.
const MAX_BUFFERED_KIB: usize = 64 * MAX_BODY_KIB;
const MAX_BODY_KIB: usize = MAX_BODY_BYTES >> 10;
/// A body that takes longer to arrive is rejected.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// A model that takes longer to list itself is missing from the list.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// `retry-after` of a model that loads, seconds.
const RETRY_SECONDS: &str = "2";
/// Headers that belong to one connection (RFC 9110, 7.6.1) or are set again.
const HOP_BY_HOP_HEADERS: [HeaderName; 9] = [
    header::CONNECTION,
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::PROXY_AUTHORIZATION,
    header::EXPECT,
];

/// The addresses of the models.
#[derive(Clone, Debug)]
pub struct Routes {
    http: reqwest::Client,
    /// By served name; `None` = it loads.
    models: Arc<RwLock<BTreeMap<String, Option<SocketAddr>>>>,
    /// A permit for each KiB of buffered bodies.
    buffer_permits: Arc<Semaphore>,
    body_timeout: Duration,
}

impl Routes {
    /// Creates routes to models of these names, all of which are loading.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub fn new(names: impl Iterator<Item = String>) -> reqwest::Result<Routes> {
        // Sidecars are local, so no proxy from the environment is used.
        let http =
            reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build()?;
        let models = names.map(|name| (name, None)).collect();
        let held = Arc::new(Semaphore::new(MAX_BUFFERED_KIB));
        Ok(Routes {
            http,
            models: Arc::new(RwLock::new(models)),
            buffer_permits: held,
            body_timeout: BODY_TIMEOUT,
        })
    }

    /// Sets the address of the model `name`.
    pub fn set(&self, name: &str, address: SocketAddr) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = models.get_mut(name) {
            *route = Some(address);
        }
    }

    /// Whether every model is ready.
    pub fn all_ready(&self) -> bool {
        self.snapshot().values().all(Option::is_some)
    }

    /// Serves at `listener` until `stop`, then ends once open answers are complete.
    ///
    /// # Errors
    /// The listener failed.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let router = Router::new()
            .route("/health", get(async || StatusCode::OK))
            .route("/ready", get(ready))
            .route("/v1/models", get(models))
            .route("/v1/models/{*id}", get(model))
            .fallback(forward)
            .with_state(self);
        // A page of another origin must not reach models that are reserved for this machine.
        let is_loopback = listener.local_addr()?.ip().is_loopback();
        let router = if is_loopback { sluice_page::serve::local_only(router) } else { router };
        // Small pieces of a stream are sent at once. If the option cannot be set, they are delayed.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, router).with_graceful_shutdown(stop).await
    }

    fn snapshot(&self) -> BTreeMap<String, Option<SocketAddr>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the body of a request with these headers, once there is memory for it.
    async fn read_body(&self, headers: &HeaderMap, body: Body) -> Result<BufferedBody, RouteError> {
        let length =
            headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let kib = length.map_or(MAX_BODY_KIB, |length: usize| length.div_ceil(1024).min(MAX_BODY_KIB));
        let permits = self.buffer_permits.clone().acquire_many_owned(kib as u32).await;
        let mut permit = permits.expect("the semaphore is never closed");
        let read = tokio::time::timeout(self.body_timeout, to_bytes(body, MAX_BODY_BYTES)).await;
        // A client that broke off reads no answer, so any other failure is the size limit.
        let body =
            read.map_err(|_| RouteError::TooSlow(self.body_timeout))?.map_err(|_| RouteError::TooLarge)?;
        drop(permit.split(kib.saturating_sub(body.len().div_ceil(1024))));
        Ok(BufferedBody { body, _permit: Some(permit) })
    }

    /// Returns the address of the model `name`.
    fn find(&self, name: &str) -> Result<SocketAddr, RouteError> {
        let models = self.snapshot();
        match models.get(name) {
            Some(Some(address)) => Ok(*address),
            Some(None) => Err(RouteError::Loading(name.to_owned())),
            None => Err(RouteError::NoModel(name.to_owned(), models.into_keys().collect())),
        }
    }

    /// Returns the address of the model that `body` names; optional if only one is served.
    fn find_by_body(&self, body: &[u8]) -> Result<SocketAddr, RouteError> {
        #[derive(serde::Deserialize)]
        struct Named {
            model: Option<Value>,
        }
        let models = self.snapshot();
        let read = serde_json::from_slice::<Named>(body).ok().and_then(|named| named.model);
        let only = || models.keys().next().filter(|_| models.len() == 1);
        match read {
            Some(Value::String(name)) => self.find(&name),
            // The model itself reports other mistakes of the body.
            _ => only()
                .map_or(Err(RouteError::Unnamed(models.keys().cloned().collect())), |name| self.find(name)),
        }
    }

    async fn send(&self, to: SocketAddr, asked: ForwardRequest) -> Result<Response, RouteError> {
        let url = format!("http://{to}{}", asked.path);
        let BufferedBody { body, _permit } = asked.body;
        let request =
            self.http.request(asked.method, url).headers(forwarded_headers(&asked.headers)).body(body);
        let answer =
            request.send().await.map_err(|error| RouteError::Unreachable(error.without_url().to_string()))?;
        let (status, headers) = (answer.status(), forwarded_headers(answer.headers()));
        // Pieces are forwarded at once. If a client disconnects, this body is dropped, which cancels the request at the
        // model.
        let mut response = Response::new(Body::from_stream(answer.bytes_stream()));
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }
}

/// A request to forward.
struct ForwardRequest {
    method: Method,
    /// Path and query.
    path: String,
    headers: HeaderMap,
    body: BufferedBody,
}

/// A body, and the permits for its memory.
#[derive(Debug, Default)]
struct BufferedBody {
    body: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| !HOP_BY_HOP_HEADERS.contains(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

async fn ready(State(routes): State<Routes>) -> StatusCode {
    if routes.all_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Merges the lists of all models that answer.
async fn models(State(routes): State<Routes>, headers: HeaderMap) -> Response {
    let list = async |address: SocketAddr| {
        let url = format!("http://{address}/v1/models");
        let request = routes.http.get(url).headers(forwarded_headers(&headers)).timeout(LIST_TIMEOUT);
        Some(request.send().await.ok()?.json::<Value>().await.ok()?["data"].take())
    };
    // A model that restarts or hangs is missing from the list.
    let all = join_all(routes.snapshot().into_values().flatten().map(list)).await;
    let data: Vec<Value> =
        all.into_iter().flatten().filter_map(|list| Some(list.as_array()?.clone())).flatten().collect();
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn model(State(routes): State<Routes>, Path(id): Path<String>, request: Request) -> Response {
    let path = request.uri().path_and_query().map_or(String::new(), ToString::to_string);
    let asked = ForwardRequest {
        method: Method::GET,
        path,
        headers: request.headers().clone(),
        body: BufferedBody::default(),
    };
    to_response(match routes.find(&id) {
        Ok(to) => routes.send(to, asked).await,
        Err(problem) => Err(problem),
    })
}

async fn forward(State(routes): State<Routes>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match routes.read_body(&parts.headers, body).await {
        Ok(body) => body,
        Err(problem) => return problem.into_response(),
    };
    let path = parts.uri.path_and_query().map_or(String::new(), ToString::to_string);
    let to = match parts.method {
        Method::POST => routes.find_by_body(&body.body),
        // Other methods name no model, so exactly one must be served.
        _ => routes.find_by_body(b"{}").map_err(|problem| match problem {
            RouteError::Unnamed(_) => RouteError::NoRoute(parts.uri.path().to_owned()),
            other => other,
        }),
    };
    let asked = ForwardRequest { method: parts.method, path, headers: parts.headers, body };
    to_response(match to {
        Ok(to) => routes.send(to, asked).await,
        Err(problem) => Err(problem),
    })
}

fn to_response(sent: Result<Response, RouteError>) -> Response {
    sent.unwrap_or_else(IntoResponse::into_response)
}

/// Why a request reaches no model.
#[derive(Debug, PartialEq, Eq)]
enum RouteError {
    /// No model has this name; lists the available ones.
    NoModel(String, Vec<String>),
    /// The body names no model; lists the available ones.
    Unnamed(Vec<String>),
    /// The model is loading.
    Loading(String),
    /// Its sidecar cannot be reached.
    Unreachable(String),
    /// The body is too large.
    TooLarge,
    /// The body did not arrive in time.
    TooSlow(Duration),
    /// The path does not exist.
    NoRoute(String),
}

impl IntoResponse for RouteError {
    /// Formats the error in OpenAI's form.
    fn into_response(self) -> Response {
        const REQUEST_ERROR: &str = "invalid_request_error";
        const SERVICE_ERROR: &str = "service_unavailable";
        let models =
            |names: Vec<String>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let (status, kind, code, param, message) = match self {
            RouteError::NoModel(name, names) => {
                let message =
                    format!("the model `{name}` does not exist; the models here are {}", models(names));
                (StatusCode::NOT_FOUND, REQUEST_ERROR, Some("model_not_found"), Some("model"), message)
            }
            RouteError::Unnamed(names) => {
                let message =
                    format!("the body must be JSON with a string `model`, one of {}", models(names));
                (StatusCode::BAD_REQUEST, REQUEST_ERROR, None, Some("model"), message)
            }
            RouteError::Loading(name) => {
                let message = format!("the model `{name}` is loading");
                (StatusCode::SERVICE_UNAVAILABLE, SERVICE_ERROR, None, None, message)
            }
            RouteError::Unreachable(why) => {
                let message = format!("the model cannot be reached: {why}");
                (StatusCode::SERVICE_UNAVAILABLE, SERVICE_ERROR, None, None, message)
            }
            RouteError::TooLarge => {
                let message = format!("the body is larger than {MAX_BODY_BYTES} bytes");
                (StatusCode::PAYLOAD_TOO_LARGE, REQUEST_ERROR, None, None, message)
            }
            RouteError::TooSlow(limit) => {
                let message = format!("the body did not arrive within {limit:?}");
                (StatusCode::REQUEST_TIMEOUT, REQUEST_ERROR, None, None, message)
            }
            RouteError::NoRoute(path) => {
                (StatusCode::NOT_FOUND, REQUEST_ERROR, None, None, format!("no route {path}"))
            }
        };
        let body = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        response
    }
}

#[cfg(test)]
mod tests;

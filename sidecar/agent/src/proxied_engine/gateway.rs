//! The OpenAI API of a tenant with a proxied engine: authorizes, holds and resends requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::UnavailableReason;
use sluice_wire::config::LimitsConfig;
use tokio::sync::watch;

use super::engine::{EngineClient, EngineError};
use super::headers::{request_headers, response_headers};
use super::paced_stream::{PacedStream, RequestAccounting, StreamMode};
use super::request::{ForwardedRequest, TokenCounts};
use super::request_gate::RequestGate;
use super::sse::Usage;
use crate::gateway::ApiKeys;
use crate::gateway::body::{BodyLimits, JsonBody};
use crate::gateway::error::ApiError;
use crate::gateway::limits::RequestLimiter;
use crate::gateway::scrape::MetricsScrape;
use crate::metrics::Metrics;

/// Most sends of a request, because a request that crashes the engine each time must not be repeated forever.
const ATTEMPTS_MAX: u32 = 3;
/// Largest response that is not streamed, bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// State of the gateway, shared by all requests.
#[derive(Debug)]
pub struct ProxyGateway {
    /// The engine.
    pub engine: EngineClient,
    /// Gate in which requests wait for the engine.
    pub gate: RequestGate,
    /// Metrics of this sidecar.
    pub metrics: Arc<Metrics>,
    /// Names of the model.
    pub served_names: Vec<String>,
    /// Limits on clients.
    pub limits: LimitsConfig,
    /// Pacing of streams.
    pub stream_pacing: Pacing,
    /// Limiter of open requests and bodies.
    pub limiter: RequestLimiter,
    /// True when all open responses must end.
    pub shutdown: watch::Receiver<bool>,
}

impl BodyLimits for ProxyGateway {
    fn max_body_bytes(&self) -> u64 {
        self.limits.max_body_bytes
    }

    fn limiter(&self) -> &RequestLimiter {
        &self.limiter
    }
}

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const MODELS: &str = "/v1/models";

impl ProxyGateway {
    /// Returns the routes of `:8000`.
    pub fn router(self: Arc<Self>, keys: ApiKeys, scrape: MetricsScrape) -> Router {
        let api = Router::new()
            .route(COMPLETIONS, post(completions))
            .route(CHAT, post(chat))
            .route(MODELS, get(models))
            .route("/v1/models/{*id}", get(model))
            .with_state(self);
        crate::gateway::api_router(api, keys, scrape)
    }
}

type GatewayState = State<Arc<ProxyGateway>>;

async fn completions(
    State(gateway): GatewayState,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    gateway.respond(COMPLETIONS, &headers, body).await
}

async fn chat(
    State(gateway): GatewayState,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    gateway.respond(CHAT, &headers, body).await
}

async fn models(State(gateway): GatewayState) -> Result<Response, ApiError> {
    let (status, headers, text) = gateway.list_models().await?;
    Ok((status, response_headers(&headers), text).into_response())
}

async fn model(State(gateway): GatewayState, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let (_, _, text) = gateway.list_models().await?;
    let list: Value = serde_json::from_slice(&text).unwrap_or_default();
    let found = list["data"].as_array().and_then(|data| data.iter().find(|model| model["id"] == id.as_str()));
    found.cloned().map(Json).ok_or_else(|| ApiError::model_not_found(&id))
}

/// A request as it is sent to the engine.
struct UpstreamRequest<'a> {
    path: &'a str,
    headers: HeaderMap,
    body: Bytes,
    /// Whether the usage event is removed from the response, because only the sidecar requested it.
    should_strip_usage: bool,
}

/// A request without a response.
struct FailedAttempt {
    accounting: Box<RequestAccounting>,
    error: AttemptError,
}

/// Why a request has no response.
enum AttemptError {
    /// No part of a response was received, so the request can be sent again.
    Retry(EngineError),
    /// The error is returned to the client.
    Fatal(ApiError),
}

impl FailedAttempt {
    fn retry(account: Box<RequestAccounting>, trouble: EngineError) -> FailedAttempt {
        FailedAttempt { accounting: account, error: AttemptError::Retry(trouble) }
    }

    fn fatal(account: Box<RequestAccounting>, error: ApiError) -> FailedAttempt {
        FailedAttempt { accounting: account, error: AttemptError::Fatal(error) }
    }
}

impl ProxyGateway {
    fn hold_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.limits.hold_seconds))
    }

    /// Returns the engine's list of models. A sleeping engine can list them and is not woken.
    async fn list_models(&self) -> Result<(StatusCode, HeaderMap, Vec<u8>), ApiError> {
        self.gate.wait_reachable(self.hold_timeout()).await?;
        self.engine.get(MODELS).await.map_err(|trouble| ApiError::engine_failed(trouble.to_string()))
    }

    async fn respond(
        self: &Arc<Self>,
        path: &str,
        headers: &HeaderMap,
        body: JsonBody,
    ) -> Result<Response, ApiError> {
        let arrived = Instant::now();
        // Every check runs before the request takes a permit or wakes the engine.
        let (bytes, gateway) = (body.bytes().len(), self.clone());
        let read = move || {
            let asked = ForwardedRequest::read(body.bytes(), &gateway.served_names)?;
            let questions = gateway.tokenize_requests(body.bytes())?;
            Ok::<_, ApiError>((asked, questions, body))
        };
        let (asked, questions, body) = self.limiter.parse(bytes, read).await?;
        let open = self.limiter.acquire(asked.choices)?;
        let place = self.gate.admit(self.limits.max_queued_requests, self.hold_timeout())?;
        let account =
            Box::new(RequestAccounting::new(place, open, arrived, self.metrics.clone(), asked.stream));
        // The body may be sent again, so its bytes count until the response has started.
        let (body, _budget) = body.into_parts();
        let body = asked.upstream_body(body);
        let sent = UpstreamRequest {
            path,
            headers: request_headers(headers),
            body,
            should_strip_usage: asked.is_usage_injected,
        };
        let mut cut = self.shutdown.clone();
        tokio::select! {
            answer = self.send_with_retries(&sent, questions, account) => answer,
            // A dropped sender also means shutdown.
            _ = cut.wait_for(|cut| *cut) => Err(ApiError::from_unavailable(&UnavailableReason::ShuttingDown)),
        }
    }

    /// Sends a request until it has a response or its attempts or hold time are used up.
    async fn send_with_retries(
        &self,
        sent: &UpstreamRequest<'_>,
        mut questions: Vec<Vec<u8>>,
        mut account: Box<RequestAccounting>,
    ) -> Result<Response, ApiError> {
        let mut sends = 0;
        loop {
            let FailedAttempt { accounting: missed, error: why } =
                match self.attempt(sent, &mut questions, account).await {
                    Ok(answer) => return Ok(answer),
                    Err(missed) => missed,
                };
            account = missed;
            account.reset();
            let error = match why {
                AttemptError::Fatal(error) => Some(error),
                AttemptError::Retry(trouble) => {
                    tracing::debug!(%trouble, "a request has no answer");
                    sends += u32::from(!matches!(trouble, EngineError::Unreachable(_)));
                    self.metrics.on_resent();
                    let over = (sends >= ATTEMPTS_MAX).then(|| ApiError::engine_failed(trouble.to_string()));
                    match over {
                        Some(error) => Some(error),
                        None => account.guard.wait_probed().await.err(),
                    }
                }
            };
            if let Some(error) = error {
                account.on_error(&error);
                return Err(error);
            }
        }
    }

    async fn attempt(
        &self,
        sent: &UpstreamRequest<'_>,
        questions: &mut Vec<Vec<u8>>,
        mut account: Box<RequestAccounting>,
    ) -> Result<Response, FailedAttempt> {
        if let Err(error) = account.guard.wait_awake().await {
            return Err(FailedAttempt::fatal(account, error));
        }
        if let Err(why) = self.check_prompt_length(sent.path, questions).await {
            return Err(FailedAttempt { accounting: account, error: why });
        }
        let (headers, body) = (sent.headers.clone(), sent.body.clone());
        let response = match self.engine.post(sent.path, headers, body).await {
            Ok(response) => response,
            Err(trouble) => return Err(FailedAttempt::retry(account, trouble)),
        };
        let status = response.status();
        if status.is_server_error() && self.engine.health().await.is_err() {
            // The engine is unhealthy, so the request is not at fault.
            return Err(FailedAttempt::retry(account, EngineError::Status(status.as_u16())));
        }
        if status.is_success() && is_stream(response.headers()) {
            return self.stream_response(sent.should_strip_usage, response, account).await;
        }
        full_response(response, account).await
    }

    async fn stream_response(
        &self,
        keep_usage: bool,
        response: reqwest::Response,
        account: Box<RequestAccounting>,
    ) -> Result<Response, FailedAttempt> {
        let (status, headers) = (response.status(), response_headers(response.headers()));
        let upstream = response.bytes_stream().map(|come| come.map_err(EngineError::from)).boxed();
        let mut cut = self.shutdown.clone();
        let cut = async move { drop(cut.wait_for(|cut| *cut).await) };
        let manner = StreamMode { pacing: self.stream_pacing, should_strip_usage: keep_usage };
        match PacedStream::new(upstream, cut, manner, account).wait_first_event().await {
            Ok(paced) => {
                let body = Body::from_stream(paced.map(Ok::<Bytes, Infallible>));
                Ok((status, headers, body).into_response())
            }
            Err(account) => {
                Err(FailedAttempt::retry(account, EngineError::Broken("its stream did not start".into())))
            }
        }
    }

    /// Returns the `/tokenize` requests that are needed to know the lengths of the prompts in `body`.
    fn tokenize_requests(&self, body: &[u8]) -> Result<Vec<Vec<u8>>, ApiError> {
        let Some(limit) = self.limits.max_prompt_tokens else { return Ok(Vec::new()) };
        let TokenCounts { known_tokens: known, tokenize_requests: to_ask } =
            TokenCounts::from_body(body, limit)?;
        self.check_prompt_limit(known, "prompt").map(|()| to_ask)
    }

    fn check_prompt_limit(&self, tokens: usize, param: &str) -> Result<(), ApiError> {
        match self.limits.max_prompt_tokens {
            Some(limit) if tokens > limit as usize => Err(ApiError::invalid_param(
                param,
                format!("the prompt has {tokens} tokens, the limit is {limit}"),
            )),
            _ => Ok(()),
        }
    }

    /// Checks the prompts that only the engine can count. Prompts that the engine does not count are not limited.
    async fn check_prompt_length(
        &self,
        path: &str,
        questions: &mut Vec<Vec<u8>>,
    ) -> Result<(), AttemptError> {
        let param = if path == CHAT { "messages" } else { "prompt" };
        while let Some(question) = questions.last() {
            let tokens = self.engine.count_tokens(question.clone()).await.map_err(AttemptError::Retry)?;
            self.check_prompt_limit(tokens.unwrap_or(0) as usize, param).map_err(AttemptError::Fatal)?;
            questions.pop();
        }
        Ok(())
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
}

/// Fields that are read of a response without stream.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FullResponse {
    usage: Option<Usage>,
    choices: Vec<FinishedChoice>,
}

#[derive(Deserialize)]
struct FinishedChoice {
    #[serde(default)]
    finish_reason: Option<String>,
}

/// Returns a complete response. It is passed on only when complete, so that a broken one can be requested again.
async fn full_response(
    mut response: reqwest::Response,
    mut account: Box<RequestAccounting>,
) -> Result<Response, FailedAttempt> {
    let (status, headers) = (response.status(), response_headers(response.headers()));
    let mut text = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) => text.extend_from_slice(&piece),
            Ok(None) => break,
            Err(error) => return Err(FailedAttempt::retry(account, error.into())),
        }
        if text.len() > MAX_ANSWER_BYTES {
            let error = ApiError::engine_failed(format!("the answer has more than {MAX_ANSWER_BYTES} bytes"));
            return Err(FailedAttempt::fatal(account, error));
        }
    }
    let read: FullResponse = serde_json::from_slice(&text).unwrap_or_default();
    let end = read.choices.iter().find_map(|choice| choice.finish_reason.clone());
    account.usage = read.usage;
    account.on_choice_end(if status.is_success() { end.as_deref().unwrap_or("stop") } else { "error" });
    account.is_failed = status.is_server_error();
    Ok((status, headers, text).into_response())
}

//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sluice_scheduler::{RejectReason, UnavailableReason};

use super::endpoint::Endpoint;

/// `retry-after` while the server restarts or loads, seconds.
pub const RETRY_SOON_SECONDS: u32 = 5;
/// `retry-after` when only a restart helps, seconds.
pub const RETRY_LATER_SECONDS: u32 = 30;

/// Tokens of a prompt, exact or bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptTokens {
    /// Exact count.
    Exact(u64),
    /// Lower bound by the prompt's bytes, without tokenizing it.
    AtLeast(u64),
}

impl PromptTokens {
    /// Returns the lower bound.
    pub fn lower_bound(self) -> u64 {
        match self {
            PromptTokens::Exact(tokens) | PromptTokens::AtLeast(tokens) => tokens,
        }
    }
}

impl fmt::Display for PromptTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PromptTokens::Exact(tokens) => write!(f, "{tokens}"),
            PromptTokens::AtLeast(tokens) => write!(f, "at least {tokens}"),
        }
    }
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    retry_after_seconds: Option<u32>,
    /// Whether the response states that bodies must have no content coding.
    is_identity_only: bool,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let (message, retry_after_seconds) = (message.into(), None);
        ApiError {
            status,
            kind,
            code: None,
            param: None,
            message,
            retry_after_seconds,
            is_identity_only: false,
        }
    }

    /// Returns 400 for one parameter.
    pub fn invalid_param(param: &str, message: impl Into<String>) -> Self {
        let error = ApiError::bad_request(message);
        ApiError { param: Some(param.to_owned()), ..error }
    }

    /// Returns 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Returns 400 for a parameter of OpenAI's API that this server does not support.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        ApiError { code: Some("unsupported_parameter"), ..ApiError::invalid_param(param, message) }
    }

    /// Returns 401.
    pub fn unauthorized() -> Self {
        let error =
            ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", "a valid API key is required");
        ApiError { code: Some("invalid_api_key"), ..error }
    }

    /// Returns 404 for a model that is not served.
    pub fn model_not_found(name: &str) -> Self {
        let message = format!("the model `{name}` does not exist");
        let error = ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        ApiError { code: Some("model_not_found"), param: Some("model".into()), ..error }
    }

    /// Returns 404 for a path.
    pub fn route_not_found(path: &str) -> Self {
        let message = format!(
            "there is nothing at {path}: GET /v1/models lists the models, POST /v1/chat/completions and /v1/completions \
             answer"
        );
        ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// Returns 405.
    pub fn method_not_allowed() -> Self {
        let message = "this path does not take that method";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// Returns 408: the body did not arrive in time.
    pub fn body_timeout() -> Self {
        let message = "the body did not arrive in time";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// Returns 413.
    pub fn body_too_large(limit_bytes: u64) -> Self {
        let message = format!("the body is larger than {limit_bytes} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// Returns 415 for a content coding. The response's `accept-encoding` states that none is accepted (RFC 9110,
    /// 15.5.16).
    pub fn unsupported_encoding(coding: &str) -> Self {
        let message = format!("content-encoding `{coding}` is not supported: send the body without one");
        let error = ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message);
        ApiError { is_identity_only: true, ..error }
    }

    /// Returns 415 for a body that is not JSON.
    pub fn not_json() -> Self {
        let message = "the body must be application/json";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// Returns 429.
    pub fn rate_limited(message: impl Into<String>) -> Self {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { code: Some("rate_limit_exceeded"), retry_after_seconds: Some(1), ..error }
    }

    /// Returns 503.
    pub fn unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message);
        ApiError { retry_after_seconds: Some(retry_after_seconds), ..error }
    }

    /// Returns 503: the request cannot run now. The client should retry it unchanged.
    pub fn from_unavailable(outage: &UnavailableReason) -> Self {
        let retry_after_seconds = match outage {
            UnavailableReason::ShuttingDown
            | UnavailableReason::NoEngine { .. }
            | UnavailableReason::Asleep { .. } => RETRY_SOON_SECONDS,
            UnavailableReason::Device(_) => RETRY_LATER_SECONDS,
        };
        ApiError::unavailable(outage.to_string(), retry_after_seconds)
    }

    /// Returns 502: the engine failed this request.
    pub fn engine_failed(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_GATEWAY, "server_error", message)
    }

    /// Returns 400 in OpenAI's wording, which clients match: the prompt leaves no capacity for an answer.
    pub fn prompt_too_long(kind: Endpoint, tokens: PromptTokens, context_tokens: u32) -> Self {
        let resulted = match kind {
            Endpoint::Completion => format!("your prompt has {tokens} tokens"),
            Endpoint::Chat => format!("your messages resulted in {tokens} tokens"),
        };
        let param = kind.prompt_param();
        let answer = match tokens.lower_bound() == u64::from(context_tokens) {
            true => " and an answer needs at least one more",
            false => "",
        };
        ApiError::context_length(
            param,
            context_tokens,
            &format!("{resulted}{answer}. Please reduce the length of the {param}"),
        )
    }

    /// Returns 400 in OpenAI's wording: the prompt leaves less capacity than the tokens that `param` requests.
    pub fn context_exceeded(
        kind: Endpoint,
        param: &str,
        prompt_tokens: u32,
        max_tokens: u32,
        context_tokens: u32,
    ) -> Self {
        let tokens = u64::from(prompt_tokens) + u64::from(max_tokens);
        let prompt = kind.prompt_param();
        let asked = format!(
            "you requested {tokens} tokens ({prompt_tokens} in the {prompt}, {max_tokens} in the completion). Please \
             reduce the length of the {prompt} or completion"
        );
        ApiError::context_length(param, context_tokens, &asked)
    }

    fn context_length(param: &str, context_tokens: u32, however: &str) -> Self {
        let message =
            format!("This model's maximum context length is {context_tokens} tokens. However, {however}.");
        ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid_param(param, message) }
    }

    /// Returns the error for a rejection by the scheduler.
    pub fn from_refusal(kind: Endpoint, refusal: RejectReason) -> Self {
        match refusal {
            RejectReason::ContextLengthExceeded { prompt_tokens, max_tokens, limit_tokens } => {
                ApiError::context_exceeded(kind, "max_tokens", prompt_tokens, max_tokens, limit_tokens)
            }
            RejectReason::QueueFull { .. } => ApiError::rate_limited(refusal.to_string()),
            RejectReason::Empty => ApiError::invalid_param(kind.prompt_param(), refusal.to_string()),
        }
    }

    /// Whether the server failed, rather than the request being invalid.
    pub fn is_server_error(&self) -> bool {
        self.status.is_server_error()
    }

    /// Returns the JSON body.
    pub fn body(&self) -> Value {
        let ApiError { kind, code, param, message, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_identity_only {
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

//! Request bodies: JSON, limited in size and time, and counted while they are in memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use futures_util::StreamExt;

use super::error::ApiError;
use super::limits::{BodyBudget, RequestLimiter};

/// Longest time to receive a body.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the rest of a refused body is read, so that the client receives the response instead of a reset.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// A complete body. Its bytes count against the limit of all bodies until it is dropped.
#[derive(Debug, Default)]
pub struct JsonBody {
    bytes: Vec<u8>,
    budget: BodyBudget,
}

impl JsonBody {
    /// Returns the bytes of the JSON text.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Splits the body into its bytes and the budget that they occupy until it is dropped.
    pub fn into_parts(self) -> (Vec<u8>, BodyBudget) {
        (self.bytes, self.budget)
    }
}

/// Limits of a handler that accepts bodies.
pub trait BodyLimits {
    /// Largest body, bytes.
    fn max_body_bytes(&self) -> u64;

    /// Limiter that counts the bytes in memory.
    fn limiter(&self) -> &RequestLimiter;
}

impl<G: BodyLimits + Send + Sync> FromRequest<Arc<G>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, gateway: &Arc<G>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let limit = gateway.max_body_bytes();
        if let Err(error) = check_json_headers(&parts.headers) {
            discard(body.into_data_stream(), &parts.headers).await;
            return Err(error);
        }
        if declared_bytes(&parts.headers).is_some_and(|bytes| bytes > limit) {
            discard(body.into_data_stream(), &parts.headers).await;
            return Err(ApiError::body_too_large(limit));
        }
        let read = read(&**gateway, body, &parts.headers);
        tokio::time::timeout(READ_TIMEOUT, read).await.unwrap_or_else(|_| Err(ApiError::body_timeout()))
    }
}

async fn read(
    gateway: &(impl BodyLimits + Sync),
    body: Body,
    headers: &HeaderMap,
) -> Result<JsonBody, ApiError> {
    let limit = gateway.max_body_bytes();
    let (mut stream, mut body) = (body.into_data_stream(), JsonBody::default());
    while let Some(chunk) = stream.next().await {
        let chunk =
            chunk.map_err(|error| ApiError::bad_request(format!("the body cannot be read: {error}")))?;
        let length = body.bytes.len() + chunk.len();
        if length as u64 > limit {
            discard(stream, headers).await;
            return Err(ApiError::body_too_large(limit));
        }
        gateway.limiter().reserve_body(&mut body.budget, length)?;
        body.bytes.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Checks that a body is plain JSON.
///
/// # Errors
/// 415: the body has another type or a content coding.
pub(crate) fn check_json_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
    let codings = headers.get_all(header::CONTENT_ENCODING).iter().map(text);
    let kind = headers.get(header::CONTENT_TYPE).map(text).unwrap_or_default();
    match codings.into_iter().find(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity")) {
        Some(coding) => Err(ApiError::unsupported_encoding(&coding)),
        None if is_json(&kind) => Ok(()),
        None => Err(ApiError::not_json()),
    }
}

fn is_json(kind: &str) -> bool {
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

pub(crate) fn declared_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(crate) async fn discard(mut rest: BodyDataStream, headers: &HeaderMap) {
    if headers.contains_key(header::EXPECT) {
        // The client sends no body before it receives a response, and the error is that response.
        return;
    }
    let all = async { while let Some(Ok(_)) = rest.next().await {} };
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, all).await;
}

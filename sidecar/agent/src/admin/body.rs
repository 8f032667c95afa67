//! Request bodies, bounded in bytes and in time.

use std::time::Duration;

use axum::extract::{FromRequest, Request};
use futures_util::StreamExt;

use crate::gateway::body::{check_json_headers, declared_bytes, discard};
use crate::gateway::error::ApiError;

/// Time limit for a body.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A JSON body of at most `LIMIT` bytes.
pub struct Body<const LIMIT: usize>(pub Vec<u8>);

impl<S: Sync, const LIMIT: usize> FromRequest<S> for Body<LIMIT> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let read = tokio::time::timeout(READ_TIMEOUT, read_bounded(request, LIMIT)).await;
        read.unwrap_or_else(|_| Err(ApiError::body_timeout())).map(Body)
    }
}

async fn read_bounded(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut stream = body.into_data_stream();
    if let Err(error) = check_json_headers(&parts.headers) {
        discard(stream, &parts.headers).await;
        return Err(error);
    }
    if declared_bytes(&parts.headers).is_some_and(|bytes| bytes > limit as u64) {
        discard(stream, &parts.headers).await;
        return Err(ApiError::body_too_large(limit as u64));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk =
            chunk.map_err(|error| ApiError::bad_request(format!("the body cannot be read: {error}")))?;
        if bytes.len() + chunk.len() > limit {
            discard(stream, &parts.headers).await;
            return Err(ApiError::body_too_large(limit as u64));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

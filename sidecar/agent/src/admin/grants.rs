//! `POST /v1/grants`: a neighbour's request, decided by the scheduler.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sluice_wire::grants::GrantRequest;

use super::Admin;
use super::access::Caller;
use super::body::Body;
use super::error::Refusal;
use crate::gateway::error::ApiError;
use crate::neighbours::call::Call;
use crate::neighbours::place::full_name;
use crate::service::Message;

/// Most bytes of a request.
pub const MAX_BYTES: usize = 64 << 10;
/// How long the scheduler may take. Whoever asks waits much less, and cancels.
const PATIENCE: Duration = Duration::from_secs(2);

/// Hands a request to the scheduler, if it is said in the caller's own name. No answer in time is 503, not a refusal:
/// nobody knows what has happened.
pub async fn post(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Body(text): Body<MAX_BYTES>,
) -> Result<Response, Refusal> {
    let request = GrantRequest::from_json(&text, admin.chunk_bytes)?;
    let sender = request.sender();
    caller.speaks_as(&full_name(&sender.namespace, &sender.name))?;
    let question = |answer| Message::Call(Call::Grant(request, answer));
    let answer = admin.service.asked(PATIENCE, question).await;
    let answer = answer.ok_or_else(|| ApiError::unavailable("the scheduler did not decide in time", 1))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], answer.to_json()).into_response())
}

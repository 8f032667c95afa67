//! `POST /v1/grants`: a neighbour's request, decided by the scheduler.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sluice_wire::grants::GrantRequest;

use super::Admin;
use super::auth::Caller;
use super::body::Body;
use super::error::AdminError;
use crate::gateway::error::ApiError;
use crate::peers::admin_call::AdminCall;
use crate::peers::membership::full_name;
use crate::scheduler_handle::Message;

/// Most bytes of a request.
pub const MAX_BYTES: usize = 64 << 10;
/// How long the scheduler may take. Whoever asks waits much less, and cancels.
const DECISION_TIMEOUT: Duration = Duration::from_secs(2);

/// Hands a request to the scheduler, if it is said in the caller's own name. No answer in time is 503, not a refusal:
/// nobody knows what has happened.
pub async fn post(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Body(text): Body<MAX_BYTES>,
) -> Result<Response, AdminError> {
    let request = GrantRequest::from_json(&text, admin.chunk_bytes)?;
    let sender = request.sender();
    caller.check_identity(&full_name(&sender.namespace, &sender.name))?;
    let question = |answer| Message::Admin(AdminCall::Grant(request, answer));
    let answer = admin.service.query(DECISION_TIMEOUT, question).await;
    let answer = answer.ok_or_else(|| ApiError::unavailable("the scheduler did not decide in time", 1))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], answer.to_json()).into_response())
}

//! `POST /v1/grants`: a peer's request, decided by the scheduler.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sluice_wire::grants::GrantRequest;

use super::auth::Caller;
use super::body::Body;
use super::context::Admin;
use super::error::AdminError;
use crate::gateway::error::ApiError;
use crate::peers::admin_call::AdminCall;
use crate::peers::full_name::full_name;
use crate::scheduler_handle::SchedulerMessage;

/// Maximum size of a request in bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Time limit for the scheduler's decision. The caller's timeout is much shorter, and then it cancels.
const DECISION_TIMEOUT: Duration = Duration::from_secs(2);

/// Passes a request to the scheduler if the caller sends it in its own name. Without an answer in time, the status is
/// 503 and not a refusal, because the outcome is unknown.
pub async fn post(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Body(text): Body<MAX_BYTES>,
) -> Result<Response, AdminError> {
    let request = GrantRequest::from_json(&text, admin.chunk_bytes)?;
    let sender = request.sender();
    caller.check_identity(&full_name(&sender.namespace, &sender.name))?;
    let question = |answer| SchedulerMessage::Admin(AdminCall::Grant(request, answer));
    let answer = admin.service.query(DECISION_TIMEOUT, question).await;
    let answer = answer.ok_or_else(|| ApiError::unavailable("the scheduler did not decide in time", 1))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], answer.to_json()).into_response())
}

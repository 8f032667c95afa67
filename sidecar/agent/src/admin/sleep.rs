//! `/sleep`, `/wake_up`, `/is_sleeping`: requests and answers of vLLM's sleep mode. Parameters of vLLM that are not
//! supported (`tags`, `mode`) are refused, never ignored.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::context::Admin;
use super::error::AdminError;
use crate::gateway::error::ApiError;
use crate::peers::admin_call::{AdminCall, CallRejected, SleepLevel};
use crate::scheduler_handle::SchedulerMessage;

/// Time limit for sleep and for wake-up.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SleepQuery {
    level: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WakeUpQuery {}

/// Releases all device memory. `?level=1` (default) or 2.
pub async fn sleep(
    State(admin): State<Admin>,
    query: Result<Query<SleepQuery>, QueryRejection>,
) -> Result<StatusCode, AdminError> {
    let level = match parse_query(query)?.level.as_deref() {
        None | Some("1") => SleepLevel::One,
        Some("2") => SleepLevel::Two,
        Some(other) => {
            return Err(ApiError::invalid_param("level", format!("`{other:.80}` is not 1 or 2")).into());
        }
    };
    into_result(
        admin
            .service
            .query(SLEEP_TIMEOUT, |answer| SchedulerMessage::Admin(AdminCall::Sleep(level, answer)))
            .await,
    )
    .map(|()| StatusCode::OK)
}

/// Takes the device memory again.
pub async fn wake_up(
    State(admin): State<Admin>,
    query: Result<Query<WakeUpQuery>, QueryRejection>,
) -> Result<StatusCode, AdminError> {
    parse_query(query)?;
    into_result(
        admin.service.query(SLEEP_TIMEOUT, |answer| SchedulerMessage::Admin(AdminCall::WakeUp(answer))).await,
    )
    .map(|()| StatusCode::OK)
}

/// Whether the tenant sleeps.
pub async fn is_sleeping(State(admin): State<Admin>) -> Result<Json<Value>, AdminError> {
    let sleeping = into_result(
        admin
            .service
            .query(QUERY_TIMEOUT, |answer| SchedulerMessage::Admin(AdminCall::IsSleeping(answer)))
            .await,
    )?;
    Ok(Json(json!({"is_sleeping": sleeping})))
}

fn parse_query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, AdminError> {
    let Query(asked) = query.map_err(|error| ApiError::bad_request(error.body_text()))?;
    Ok(asked)
}

fn into_result<T>(answer: Option<Result<T, CallRejected>>) -> Result<T, AdminError> {
    let answer = answer.ok_or_else(|| ApiError::unavailable("the scheduler did not answer in time", 5))?;
    answer.map_err(|unable| AdminError::new(StatusCode::CONFLICT, "not_now", unable.to_string()))
}

//! `/sleep`, `/wake_up`, `/is_sleeping`: verbs and answers of vLLM's sleep mode. What it has and this has not (`tags`,
//! `mode`) is refused, never ignored.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Admin;
use super::error::Refusal;
use crate::gateway::error::ApiError;
use crate::neighbours::call::{Call, SleepLevel, Unable};
use crate::service::Message;

/// How long falling asleep and waking may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the question may take.
const GLANCE: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sleep {
    level: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WakeUp {}

/// Gives up all device memory. `?level=1` (default) or 2.
pub async fn sleep(
    State(admin): State<Admin>,
    query: Result<Query<Sleep>, QueryRejection>,
) -> Result<StatusCode, Refusal> {
    let level = match asked(query)?.level.as_deref() {
        None | Some("1") => SleepLevel::One,
        Some("2") => SleepLevel::Two,
        Some(other) => return Err(ApiError::param("level", format!("`{other:.80}` is not 1 or 2")).into()),
    };
    done(admin.service.asked(PATIENCE, |answer| Message::Call(Call::Sleep(level, answer))).await)
        .map(|()| StatusCode::OK)
}

/// Takes it back.
pub async fn wake_up(
    State(admin): State<Admin>,
    query: Result<Query<WakeUp>, QueryRejection>,
) -> Result<StatusCode, Refusal> {
    asked(query)?;
    done(admin.service.asked(PATIENCE, |answer| Message::Call(Call::WakeUp(answer))).await)
        .map(|()| StatusCode::OK)
}

/// Whether it is given up.
pub async fn is_sleeping(State(admin): State<Admin>) -> Result<Json<Value>, Refusal> {
    let sleeping = done(admin.service.asked(GLANCE, |answer| Message::Call(Call::IsSleeping(answer))).await)?;
    Ok(Json(json!({"is_sleeping": sleeping})))
}

fn asked<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    let Query(asked) = query.map_err(|error| ApiError::bad_request(error.body_text()))?;
    Ok(asked)
}

fn done<T>(answer: Option<Result<T, Unable>>) -> Result<T, Refusal> {
    let answer = answer.ok_or_else(|| ApiError::unavailable("the scheduler did not answer in time", 5))?;
    answer.map_err(|unable| Refusal::new(StatusCode::CONFLICT, "not_now", unable.to_string()))
}

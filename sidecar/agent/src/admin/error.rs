//! Errors of the admin port: the format of the gateway's errors, with more statuses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sluice_wire::directive::Fence;
use sluice_wire::message::ReadError;

use crate::gateway::error::ApiError;

/// Error answer of the admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminError {
    /// An error as at the gateway.
    Api(ApiError),
    /// An error that only the admin port has.
    Own {
        /// HTTP status.
        status: StatusCode,
        /// Code for programs.
        code: &'static str,
        /// Path of the invalid field.
        field: Option<String>,
        /// Text for people.
        message: String,
        /// Directive in force, if it is the reason.
        current: Option<Fence>,
    },
}

impl From<ApiError> for AdminError {
    fn from(error: ApiError) -> Self {
        AdminError::Api(error)
    }
}

impl From<ReadError> for AdminError {
    /// Converts to 400 for text that is not JSON, and to 422 with the field for JSON that is not a valid message.
    fn from(error: ReadError) -> Self {
        let (status, code) = match &error {
            ReadError::Malformed(_) => (StatusCode::BAD_REQUEST, "malformed_json"),
            ReadError::NewerVersion { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "newer_version"),
            ReadError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_field"),
        };
        AdminError::Own {
            status,
            code,
            field: error.field().map(Into::into),
            message: error.to_string(),
            current: None,
        }
    }
}

impl AdminError {
    /// Creates an error without a field.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        AdminError::Own { status, code, field: None, message: message.into(), current: None }
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        AdminError::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// 409: the directive in force stays.
    pub fn not_newer(message: impl Into<String>, current: Fence) -> Self {
        AdminError::Own {
            status: StatusCode::CONFLICT,
            code: "directive_not_newer",
            field: None,
            message: message.into(),
            current: Some(current),
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let (status, code, field, message, current) = match self {
            AdminError::Api(error) => return error.into_response(),
            AdminError::Own { status, code, field, message, current } => {
                (status, code, field, message, current)
            }
        };
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let error = json!({"message": message, "type": kind, "param": field, "code": code});
        let body = match current {
            Some(current) => json!({"error": error, "current": current}),
            None => json!({"error": error}),
        };
        (status, Json(body)).into_response()
    }
}

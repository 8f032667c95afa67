//! `/v1/directive`.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sluice_wire::directive::CurrentFence;

use super::body::Body;
use super::context::Admin;
use super::error::AdminError;
use crate::directive::{AcceptedDirective, RejectedDirective};

/// Maximum size of a directive in bytes.
pub const MAX_BYTES: usize = 256 << 10;

/// Returns the directive in force.
pub async fn get(State(admin): State<Admin>) -> Result<Response, AdminError> {
    let none = || {
        AdminError::new(StatusCode::NOT_FOUND, "no_directive", "this tenant has received no directive yet")
    };
    let in_force = admin.directives.active().ok_or_else(none)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], in_force.text.to_vec()).into_response())
}

/// Accepts a new directive.
pub async fn put(
    State(admin): State<Admin>,
    Body(text): Body<MAX_BYTES>,
) -> Result<Json<CurrentFence>, AdminError> {
    let directives = admin.directives.clone();
    // The task completes even if the caller disconnects, so that a directive is never half applied.
    let put = tokio::task::spawn_blocking(move || directives.put(&text)).await;
    match put.expect("storing a directive does not panic")? {
        AcceptedDirective::New(current) => {
            admin.service.wake();
            Ok(Json(CurrentFence { current }))
        }
        AcceptedDirective::Unchanged(current) => Ok(Json(CurrentFence { current })),
    }
}

impl From<RejectedDirective> for AdminError {
    fn from(why: RejectedDirective) -> Self {
        let message = why.to_string();
        match why {
            RejectedDirective::Read(error) => error.into(),
            RejectedDirective::NotNewer { current, .. } => AdminError::not_newer(message, current),
            RejectedDirective::Store { .. } => {
                tracing::error!(%message, "could not store a directive");
                AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "not_stored", message)
            }
        }
    }
}

//! Admin port (`:8001`): state, directive, grants and sleep, each for certain roles.
//!
//! | path | answer |
//! |---|---|
//! | `GET /v1/state` | the tenant's state; with `?scope=gpu` the states of all tenants of the GPU |
//! | `GET /v1/directive` | the directive in force, as received; 404 if there is none |
//! | `PUT /v1/directive` | 200 with the pair in force; 409 with it if not newer; 422 names the field |
//! | `POST /v1/grants` | the scheduler's answer, also if it is a refusal |
//! | `POST /sleep`, `POST /wake_up`, `GET /is_sleeping` | as in vLLM |

pub mod auth;
mod body;
mod context;
mod directive;
mod error;
mod gpu;
mod grants;
mod sleep;
pub mod start;
pub mod tls;
mod token;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router, middleware};
use serde::Deserialize;

use self::auth::{Permission, authenticate, require_permission};
pub use self::context::Admin;
use self::error::AdminError;
pub use self::token::{make_token, read_tokens};
use crate::gateway::error::ApiError;

impl Admin {
    /// Returns the routes of `:8001`. An unknown caller gets 401 for every path, and a caller without permission 403.
    pub fn router(self) -> Router {
        Router::new()
            .route("/v1/state", with_permission(Permission::State, get(state)))
            .route(
                "/v1/directive",
                with_permission(Permission::Directive, get(directive::get).put(directive::put)),
            )
            .route("/v1/grants", with_permission(Permission::Grants, post(grants::post)))
            .route("/sleep", with_permission(Permission::Sleep, post(sleep::sleep)))
            .route("/wake_up", with_permission(Permission::Sleep, post(sleep::wake_up)))
            .route("/is_sleeping", with_permission(Permission::State, get(sleep::is_sleeping)))
            .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
            .fallback(|request: Request| async move { ApiError::route_not_found(request.uri().path()) })
            .layer(middleware::from_fn_with_state(self.access.clone(), authenticate))
            .with_state(self)
    }
}

fn with_permission(right: Permission, methods: MethodRouter<Admin>) -> MethodRouter<Admin> {
    methods.route_layer(middleware::from_fn_with_state(right, require_permission))
}

#[derive(Deserialize)]
struct Scope {
    scope: Option<String>,
}

async fn state(
    State(admin): State<Admin>,
    query: Result<Query<Scope>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, AdminError> {
    let Query(Scope { scope }) = query.map_err(|error| ApiError::bad_request(error.body_text()))?;
    match scope.as_deref() {
        None => {
            let state = admin.service.state().await;
            let state = state.ok_or_else(|| ApiError::unavailable("the scheduler has ended", 5))?;
            Ok(Json(state).into_response())
        }
        Some("gpu") => Ok(gpu::states_response(&gpu::collect_states(&admin).await, &headers)),
        Some(other) => Err(ApiError::invalid_param(
            "scope",
            format!("`{other:.80}` is not a scope; the only scope is `gpu`"),
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    const PAGE: &str = include_str!("../../../docs/admin.md");

    /// Collects the names of all fields in `value` that hold no object, recursively. Of `peers`, collects only
    /// the field itself.
    fn collect_field_names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                if name == "peers" || !value.is_object() {
                    found.push(name.clone());
                }
                if name != "peers" {
                    collect_field_names(value, found);
                }
            }),
            Value::Array(values) => values.iter().for_each(|value| collect_field_names(value, found)),
            _ => {}
        }
    }

    #[test]
    fn docs_list_every_state_field() {
        let golden = include_bytes!("../../../crds/wire/tests/golden/state-v2.json");
        let mut found = Vec::new();
        collect_field_names(&serde_json::from_slice(golden).unwrap(), &mut found);
        assert!(found.len() > 60, "{found:?}");
        let missing = |name: &String| {
            let ends = [format!("`{name}`"), format!(".{name}`"), format!("\"{name}\"")];
            !ends.iter().any(|end| PAGE.contains(end))
        };
        found.retain(missing);
        assert!(found.is_empty(), "docs/admin.md says nothing of {found:?}");
    }
}

//! Admin (`:8001`): the state of the tenant, for whoever can read the token file.

use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use crate::gateway::error::ApiError;
use crate::gateway::{bearer, same_secret};
use crate::service::Service;

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// What `:8001` is made of.
#[derive(Clone)]
pub struct Admin {
    /// The scheduler.
    pub service: Service,
    /// Who shows this may ask.
    pub token: String,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("token", &"secret").finish_non_exhaustive()
    }
}

/// Makes a new token and writes it to `path`, readable by this user only. A token of an earlier run is replaced.
///
/// # Errors
/// The file cannot be written.
pub fn make_token(path: &Path) -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // `create_new`: never write a secret into a file that somebody else has put there.
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(token.as_bytes())?;
    Ok(token)
}

impl Admin {
    /// The routes of `:8001`. Without the token every path answers 401.
    pub fn router(self) -> Router {
        Router::new()
            .route("/v1/state", get(state))
            .method_not_allowed_fallback(|| async { ApiError::wrong_method() })
            .fallback(|request: Request| async move { ApiError::no_route(request.uri().path()) })
            .layer(middleware::from_fn_with_state(self.clone(), authorise))
            .with_state(self)
    }
}

async fn authorise(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if bearer(request.headers()).is_some_and(|token| same_secret(token, &admin.token)) {
        return next.run(request).await;
    }
    ApiError::unauthorised().into_response()
}

async fn state(State(admin): State<Admin>) -> Result<Json<sluice_wire::State>, ApiError> {
    let state = admin.service.state().await;
    state.map(Json).ok_or_else(|| ApiError::unavailable("the scheduler has gone", 5))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    const PAGE: &str = include_str!("../../../docs/admin.md");

    /// Names of the fields in `value` that hold no object, and below; of what is for neighbours, only that it is.
    fn names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                if name == "neighbourhood" || !value.is_object() {
                    found.push(name.clone());
                }
                if name != "neighbourhood" {
                    names(value, found);
                }
            }),
            Value::Array(values) => values.iter().for_each(|value| names(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_page_about_the_state_has_every_field() {
        let golden = include_bytes!("../../../crds/wire/tests/golden/state-v1.json");
        let mut found = Vec::new();
        names(&serde_json::from_slice(golden).unwrap(), &mut found);
        assert!(found.len() > 60, "{found:?}");
        let missing = |name: &String| {
            let ends = [format!("`{name}`"), format!(".{name}`"), format!("\"{name}\"")];
            !ends.iter().any(|end| PAGE.contains(end))
        };
        found.retain(missing);
        assert!(found.is_empty(), "docs/admin.md says nothing of {found:?}");
    }
}

//! Who comes in by the admin port, and what each may do.
//!
//! The role is known by a token, or with mutual TLS by the certificate; [`Right`] says what it opens.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Refusal;
use crate::gateway::error::ApiError;
use crate::gateway::{bearer, same_secret};

/// What somebody is to this sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Places tenants and gives directives.
    Operator,
    /// The sidecar of another tenant of this GPU.
    Neighbour,
    /// Looks.
    Reader,
}

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Read the state.
    State,
    /// Read and replace the directive.
    Directive,
    /// Ask for memory, and for memory back.
    Grants,
    /// Have the device memory given up and taken back.
    Sleep,
}

impl Role {
    /// Whether this role has that right.
    pub fn may(self, right: Right) -> bool {
        match self {
            Role::Operator => true,
            Role::Neighbour => matches!(right, Right::State | Right::Grants),
            Role::Reader => right == Right::State,
        }
    }
}

/// The role of a connection, by the certificate that was shown; `None` = one that names no role here.
#[derive(Clone, Copy, Debug)]
pub struct Shown(pub Option<Role>);

/// How a role is known.
#[derive(Clone)]
pub enum Access {
    /// By the token in the header `authorization`.
    Tokens {
        /// Of the operator; opens everything.
        operator: String,
        /// Of the neighbours, if they have one.
        neighbour: Option<String>,
    },
    /// By the certificate of the connection, which the listener has put into each request as [`Shown`].
    Certificates,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Access::Tokens { .. } => "Tokens { secret }",
            Access::Certificates => "Certificates",
        })
    }
}

impl Access {
    fn role(&self, request: &Request) -> Result<Role, Refusal> {
        match self {
            Access::Tokens { operator, neighbour } => {
                by_token(request.headers(), operator, neighbour.as_deref())
                    .ok_or_else(|| ApiError::unauthorised().into())
            }
            Access::Certificates => {
                let shown = request.extensions().get::<Shown>().and_then(|Shown(role)| *role);
                shown.ok_or_else(|| Refusal::forbidden("the certificate names no role on this GPU"))
            }
        }
    }
}

/// Compares with both, so that the time does not tell which was nearly right.
fn by_token(headers: &HeaderMap, operator: &str, neighbour: Option<&str>) -> Option<Role> {
    let token = bearer(headers)?;
    let is_neighbour = neighbour.is_some_and(|neighbour| same_secret(token, neighbour));
    let is_operator = same_secret(token, operator);
    is_operator.then_some(Role::Operator).or(is_neighbour.then_some(Role::Neighbour))
}

/// Finds out the role, or refuses.
pub async fn authenticate(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match access.role(&request) {
        Ok(role) => {
            request.extensions_mut().insert(role);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Lets through who has `right`.
pub async fn require(
    State(right): State<Right>,
    Extension(role): Extension<Role>,
    request: Request,
    next: Next,
) -> Response {
    if role.may(right) {
        return next.run(request).await;
    }
    Refusal::forbidden(format!("the role {role:?} does not open this path")).into_response()
}

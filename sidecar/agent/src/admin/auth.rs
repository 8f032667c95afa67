//! Who comes in by the admin port, and what each may do.
//!
//! The role is known by a token, or with mutual TLS by the certificate; [`Right`] says what it opens, and [`Voice`] in
//! whose name it may speak.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::AdminError;
use super::token::PeerToken;
use crate::gateway::error::ApiError;
use crate::gateway::{bearer_token, constant_time_eq};

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
pub enum Permission {
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
    pub fn has_permission(self, right: Permission) -> bool {
        match self {
            Role::Operator => true,
            Role::Neighbour => matches!(right, Permission::State | Permission::Grants),
            Role::Reader => right == Permission::State,
        }
    }
}

/// In whose name somebody may speak, where a message names its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Any tenant's: the operator, and a token that is bound to nobody.
    Any,
    /// That tenant's, `NAMESPACE/NAME`.
    Tenant(String),
    /// Nobody's.
    None,
}

/// Somebody who has come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What it is to this sidecar.
    pub role: Role,
    /// In whose name it may speak.
    pub identity: Identity,
}

impl Caller {
    /// Places tenants and gives directives.
    pub const OPERATOR: Caller = Caller { role: Role::Operator, identity: Identity::Any };

    /// A neighbour that speaks as `tenant`, `None` = as anybody.
    pub fn peer(tenant: Option<String>) -> Caller {
        Caller { role: Role::Neighbour, identity: tenant.map_or(Identity::Any, Identity::Tenant) }
    }

    /// Refuses to hear it in the name of `tenant`, `NAMESPACE/NAME`, unless that is its own.
    ///
    /// # Errors
    /// 403 with both names.
    pub fn check_identity(&self, tenant: &str) -> Result<(), AdminError> {
        let own = match &self.identity {
            Identity::Any => return Ok(()),
            Identity::Tenant(own) if own == tenant => return Ok(()),
            Identity::Tenant(own) => format!("belongs to {own}"),
            Identity::None => "names no tenant".into(),
        };
        Err(AdminError::forbidden(format!(
            "the credential {own}, and the request speaks as {tenant}: each speaks only for itself"
        )))
    }
}

/// Who is at the other end of a connection, by the certificate that was shown; `None` = it names no role here.
#[derive(Clone, Debug)]
pub struct Presented(pub Option<Caller>);

/// How a role is known.
#[derive(Clone)]
pub enum Access {
    /// By the token in the header `authorization`.
    Tokens {
        /// Of the operator; opens everything.
        operator: String,
        /// Of the neighbours, if they have any.
        neighbours: Vec<PeerToken>,
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
    fn caller(&self, request: &Request) -> Result<Caller, AdminError> {
        match self {
            Access::Tokens { operator, neighbours } => {
                caller_by_token(request.headers(), operator, neighbours)
                    .ok_or_else(|| ApiError::unauthorized().into())
            }
            Access::Certificates => {
                let shown =
                    request.extensions().get::<Presented>().and_then(|Presented(caller)| caller.clone());
                shown.ok_or_else(|| AdminError::forbidden("the certificate names no role on this GPU"))
            }
        }
    }
}

/// Compares with all, so that the time does not tell which was nearly right.
fn caller_by_token(headers: &HeaderMap, operator: &str, neighbours: &[PeerToken]) -> Option<Caller> {
    let token = bearer_token(headers)?;
    let known = |found: Option<Caller>, one: &PeerToken| {
        let same = constant_time_eq(token, &one.secret);
        found.or(same.then(|| Caller::peer(one.tenant.clone())))
    };
    let neighbour = neighbours.iter().fold(None, known);
    constant_time_eq(token, operator).then_some(Caller::OPERATOR).or(neighbour)
}

/// Finds out who it is, or refuses.
pub async fn authenticate(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match access.caller(&request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Lets through who has `right`.
pub async fn require_permission(
    State(right): State<Permission>,
    Extension(Caller { role, .. }): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if role.has_permission(right) {
        return next.run(request).await;
    }
    AdminError::forbidden(format!("the role {role:?} does not open this path")).into_response()
}

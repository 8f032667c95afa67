//! Authenticates callers of the admin port and checks their permissions.
//!
//! A token or, with mutual TLS, a certificate determines the role. [`Permission`] lists the operations that a role may
//! use, and [`Identity`] the tenants in whose name a caller may send messages.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::AdminError;
use super::token::PeerToken;
use crate::gateway::bearer_token::{bearer_token, constant_time_eq};
use crate::gateway::error::ApiError;

/// Role of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Places tenants and sends directives.
    Operator,
    /// Sidecar of another tenant of this GPU.
    Peer,
    /// Reads the state only.
    Reader,
}

/// Operation of the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Read the state.
    State,
    /// Read and replace the directive.
    Directive,
    /// Ask for memory, and revoke loans.
    Grants,
    /// Put the tenant to sleep, and wake it.
    Sleep,
}

impl Role {
    /// Whether this role has the permission `right`.
    pub fn has_permission(self, right: Permission) -> bool {
        match self {
            Role::Operator => true,
            Role::Peer => matches!(right, Permission::State | Permission::Grants),
            Role::Reader => right == Permission::State,
        }
    }
}

/// Tenants in whose name a caller may send messages that name their sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Any tenant: for the operator, and for a token that is not bound to a tenant.
    Any,
    /// Only this tenant, `NAMESPACE/NAME`.
    Tenant(String),
    /// No tenant.
    None,
}

/// Authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Role of the caller.
    pub role: Role,
    /// Tenants in whose name it may send messages.
    pub identity: Identity,
}

impl Caller {
    /// The operator.
    pub const OPERATOR: Caller = Caller { role: Role::Operator, identity: Identity::Any };

    /// Returns a peer that may send messages as `tenant`, or as any tenant for `None`.
    pub fn peer(tenant: Option<String>) -> Caller {
        Caller { role: Role::Peer, identity: tenant.map_or(Identity::Any, Identity::Tenant) }
    }

    /// Refuses a message in the name of `tenant`, `NAMESPACE/NAME`, unless the caller may use that name.
    ///
    /// # Errors
    /// 403 with both names.
    pub fn check_identity(&self, tenant: &str) -> Result<(), AdminError> {
        let own = match &self.identity {
            Identity::Any => return Ok(()),
            Identity::Tenant(own) if own == tenant => return Ok(()),
            Identity::Tenant(own) => format!("belongs to {own}"),
            Identity::None => "is of no tenant".into(),
        };
        Err(AdminError::forbidden(format!(
            "the credential {own}, but the request is in the name of {tenant}; a tenant may use only its own name"
        )))
    }
}

/// Caller named by the certificate of a connection. `None` if it names no role here.
#[derive(Clone, Debug)]
pub struct Presented(pub Option<Caller>);

/// Method that determines a caller's role.
#[derive(Clone)]
pub enum Access {
    /// The token in the header `authorization`.
    Tokens {
        /// Token of the operator, which permits everything.
        operator: String,
        /// Tokens of peers, if there are any.
        peers: Vec<PeerToken>,
    },
    /// The certificate of the connection, which the listener adds to each request as [`Presented`].
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
            Access::Tokens { operator, peers } => caller_by_token(request.headers(), operator, peers)
                .ok_or_else(|| ApiError::unauthorized().into()),
            Access::Certificates => {
                let shown =
                    request.extensions().get::<Presented>().and_then(|Presented(caller)| caller.clone());
                shown.ok_or_else(|| AdminError::forbidden("the certificate has no role on this GPU"))
            }
        }
    }
}

/// Compares with all tokens, so that the time does not reveal which one almost matches.
fn caller_by_token(headers: &HeaderMap, operator: &str, peers: &[PeerToken]) -> Option<Caller> {
    let token = bearer_token(headers)?;
    let known = |found: Option<Caller>, one: &PeerToken| {
        let same = constant_time_eq(token, &one.secret);
        found.or(same.then(|| Caller::peer(one.tenant.clone())))
    };
    let peer = peers.iter().fold(None, known);
    constant_time_eq(token, operator).then_some(Caller::OPERATOR).or(peer)
}

/// Determines the caller, or refuses the request.
pub async fn authenticate(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match access.caller(&request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Passes on requests of callers with the permission `right`.
pub async fn require_permission(
    State(right): State<Permission>,
    Extension(Caller { role, .. }): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if role.has_permission(right) {
        return next.run(request).await;
    }
    AdminError::forbidden(format!("the role {role:?} may not use this path")).into_response()
}

//! Maps a certificate to a caller.
//!
//! The role is a URI among the alternative names. Exactly one must begin with [`PREFIX`]: `…/operator`, `…/reader`, or
//! `…/peer/CLAIM` where CLAIM is the claim of this GPU, in the words of the version before `…/neighbour/CLAIM`. With
//! none, two, or the claim of another GPU, the caller has no role.
//!
//! A peer may send messages as the tenant whose admin host is among the DNS names. Without exactly one such name, it
//! may send them for no tenant.

use rustls::pki_types::CertificateDer;
use sluice_wire::config::tenant_of_host;
use webpki::EndEntityCert;

use super::TlsError;
use crate::admin::auth::{Caller, Identity, Role};
use crate::peers::full_name::full_name;

/// Prefix of a role's URI.
const PREFIX: &str = "spiffe://sluice/role/";
/// Beginnings of a peer's role, each before its claim. The operator writes the last one, which sidecars of the version
/// before know too.
const PEER_ROLES: [&str; 2] = ["peer/", "neighbour/"];

/// Returns the caller with this verified certificate on the GPU of `claim`. `None` if it has no role here.
pub fn caller_of(certificate: &CertificateDer<'_>, claim: &str) -> Option<Caller> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut roles = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(PREFIX));
    let (role, other) = (roles.next()?, roles.next());
    match role {
        _ if other.is_some() => None,
        "operator" => Some(Caller::OPERATOR),
        "reader" => Some(Caller { role: Role::Reader, identity: Identity::None }),
        role if peer_claim(role)? == claim => {
            Some(Caller { role: Role::Peer, identity: identity_of(&certificate) })
        }
        _ => None,
    }
}

/// Returns the claim in the role of a peer.
fn peer_claim(role: &str) -> Option<&str> {
    PEER_ROLES.iter().find_map(|prefix| role.strip_prefix(prefix))
}

/// Returns the tenant named by the certificate. A name with a wildcard names no tenant.
fn identity_of(certificate: &EndEntityCert<'_>) -> Identity {
    let mut tenants = certificate.valid_dns_names().filter_map(tenant_of_host);
    match (tenants.next(), tenants.next()) {
        (Some((namespace, name)), None) => Identity::Tenant(full_name(namespace, name)),
        _ => Identity::None,
    }
}

/// Checks that the claim cannot change the meaning of a URI that contains it.
pub fn check_claim(claim: &str) -> Result<(), TlsError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !claim.is_empty() && claim.bytes().all(plain) { Ok(()) } else { Err(TlsError::Claim(claim.into())) }
}

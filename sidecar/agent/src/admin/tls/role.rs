//! Whom a certificate names.
//!
//! The role is a URI among its alternative names, exactly one that begins with [`PREFIX`]: `…/operator`, `…/reader`, or
//! `…/neighbour/CLAIM` where CLAIM is the claim of this GPU. None, two, or a neighbour of another GPU: no role.
//!
//! A neighbour speaks as the tenant whose admin host is among its DNS names, exactly one: none, or two, and it speaks for
//! nobody.

use rustls::pki_types::CertificateDer;
use sluice_wire::config::tenant_of_host;
use webpki::EndEntityCert;

use super::TlsError;
use crate::admin::auth::{Caller, Identity, Role};
use crate::peers::membership::full_name;

/// Beginning of a role's URI.
const PREFIX: &str = "spiffe://sluice/role/";

/// Who has shown this verified certificate, on the GPU of `claim`; `None` = nobody with a role here.
pub fn caller_of(certificate: &CertificateDer<'_>, claim: &str) -> Option<Caller> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut roles = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(PREFIX));
    let (role, other) = (roles.next()?, roles.next());
    match role {
        _ if other.is_some() => None,
        "operator" => Some(Caller::OPERATOR),
        "reader" => Some(Caller { role: Role::Reader, identity: Identity::None }),
        role if role.strip_prefix("neighbour/")? == claim => {
            Some(Caller { role: Role::Neighbour, identity: identity_of(&certificate) })
        }
        _ => None,
    }
}

/// A name with a wildcard is that of no tenant.
fn identity_of(certificate: &EndEntityCert<'_>) -> Identity {
    let mut tenants = certificate.valid_dns_names().filter_map(tenant_of_host);
    match (tenants.next(), tenants.next()) {
        (Some((namespace, name)), None) => Identity::Tenant(full_name(namespace, name)),
        _ => Identity::None,
    }
}

/// A claim ends up in a URI: it must not change how that reads.
pub fn check_claim(claim: &str) -> Result<(), TlsError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !claim.is_empty() && claim.bytes().all(plain) { Ok(()) } else { Err(TlsError::Claim(claim.into())) }
}

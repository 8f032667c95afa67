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
use crate::admin::access::{Caller, Role, Voice};
use crate::neighbours::place::full_name;

/// Beginning of a role's URI.
const PREFIX: &str = "spiffe://sluice/role/";

/// Who has shown this verified certificate, on the GPU of `claim`; `None` = nobody with a role here.
pub fn of(certificate: &CertificateDer<'_>, claim: &str) -> Option<Caller> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut roles = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(PREFIX));
    let (role, other) = (roles.next()?, roles.next());
    match role {
        _ if other.is_some() => None,
        "operator" => Some(Caller::OPERATOR),
        "reader" => Some(Caller { role: Role::Reader, voice: Voice::None }),
        role if role.strip_prefix("neighbour/")? == claim => {
            Some(Caller { role: Role::Neighbour, voice: voice(&certificate) })
        }
        _ => None,
    }
}

/// A name with a wildcard is that of no tenant.
fn voice(certificate: &EndEntityCert<'_>) -> Voice {
    let mut tenants = certificate.valid_dns_names().filter_map(tenant_of_host);
    match (tenants.next(), tenants.next()) {
        (Some((namespace, name)), None) => Voice::Of(full_name(namespace, name)),
        _ => Voice::None,
    }
}

/// A claim ends up in a URI: it must not change how that reads.
pub fn check_claim(claim: &str) -> Result<(), TlsError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !claim.is_empty() && claim.bytes().all(plain) { Ok(()) } else { Err(TlsError::Claim(claim.into())) }
}

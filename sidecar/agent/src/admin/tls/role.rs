//! Which role a certificate names.
//!
//! A URI among its alternative names, exactly one that begins with [`PREFIX`]: `…/operator`, `…/reader`, or
//! `…/neighbour/CLAIM` where CLAIM is the claim of this GPU. None, two, or a neighbour of another GPU: no role.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::TlsError;
use crate::admin::access::Role;

/// Beginning of a role's URI.
const PREFIX: &str = "spiffe://sluice/role/";

/// The role that a verified certificate names on the GPU of `claim`.
pub fn of(certificate: &CertificateDer<'_>, claim: &str) -> Option<Role> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut roles = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(PREFIX));
    let (role, other) = (roles.next()?, roles.next());
    match role {
        _ if other.is_some() => None,
        "operator" => Some(Role::Operator),
        "reader" => Some(Role::Reader),
        role => (role.strip_prefix("neighbour/")? == claim).then_some(Role::Neighbour),
    }
}

/// A claim ends up in a URI: it must not change how that reads.
pub fn check_claim(claim: &str) -> Result<(), TlsError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !claim.is_empty() && claim.bytes().all(plain) { Ok(()) } else { Err(TlsError::Claim(claim.into())) }
}

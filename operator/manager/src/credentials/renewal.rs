//! Determines whether credentials need renewal.

use std::collections::BTreeMap;

use super::ca::CaBundle;
use super::issue::{
    CertNames, DAY_SECONDS, Identity, IssueError, LEAF_VALIDITY_DAYS, is_key_pair, issue_leaf, parse_cert,
};

/// Days before its end at which a certificate is renewed: after 20 of 30.
pub const RENEW_BEFORE_DAYS: i64 = 10;

/// Key of the certificate in a Secret of the type `kubernetes.io/tls`.
pub const TLS_CERT_KEY: &str = "tls.crt";
/// Key of the private key.
pub const TLS_PRIVATE_KEY_KEY: &str = "tls.key";
/// Key of the bundle of authorities.
pub const CA_BUNDLE_KEY: &str = "ca.crt";

/// A certificate, its key and the authorities that its owner trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The certificate and its key.
    pub identity: Identity,
    /// Trusted authorities, PEM.
    pub bundle: String,
}

impl Credentials {
    /// Returns the credentials in a Secret; `None` = the Secret lacks some of them.
    pub fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Option<Credentials> {
        let text = |key: &str| String::from_utf8(data.get(key)?.clone()).ok();
        let identity = Identity { cert: text(TLS_CERT_KEY)?, key: text(TLS_PRIVATE_KEY_KEY)? };
        Some(Credentials { identity, bundle: text(CA_BUNDLE_KEY)? })
    }
}

/// The action that credentials need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewalAction {
    /// No action before this time, seconds since 1970.
    RenewAt(i64),
    /// The bundle is replaced; the certificate stays.
    UpdateBundle,
    /// A new certificate is issued, for this reason.
    Renew(&'static str),
}

/// Returns the action for `held`, so that its certificate has `names`, is signed by the signing authority and is
/// valid at `now`.
pub fn renewal_action(
    held: Option<&Credentials>,
    names: &CertNames,
    authorities: &CaBundle,
    now: i64,
) -> RenewalAction {
    let Some(held) = held else { return RenewalAction::Renew("it does not exist") };
    let (Ok(cert), Ok(signing)) = (parse_cert(&held.identity.cert), parse_cert(&authorities.signing.cert))
    else {
        return RenewalAction::Renew("it cannot be read");
    };
    let renew_at = cert.not_after - RENEW_BEFORE_DAYS * DAY_SECONDS;
    if cert.names.as_ref() != Some(names) {
        RenewalAction::Renew("it is for other names")
    } else if cert.issuer != signing.subject {
        RenewalAction::Renew("another authority is the signing authority now")
    } else if !is_key_pair(&held.identity.key, &cert.public_key) {
        RenewalAction::Renew("its key does not match")
    } else if now >= renew_at
        || now < cert.not_before
        || cert.not_after - cert.not_before > 2 * LEAF_VALIDITY_DAYS * DAY_SECONDS
    {
        RenewalAction::Renew("it expires soon or is not valid at this time")
    } else if held.bundle != authorities.bundle() {
        RenewalAction::UpdateBundle
    } else {
        RenewalAction::RenewAt(renew_at)
    }
}

/// Returns the credentials that replace `held`; `None` = `held` is up to date.
///
/// # Errors
/// The certificate could not be issued.
pub fn renew_if_due(
    held: Option<&Credentials>,
    names: &CertNames,
    authorities: &CaBundle,
    now: i64,
) -> Result<Option<Credentials>, IssueError> {
    let identity = match (renewal_action(held, names, authorities, now), held) {
        (RenewalAction::RenewAt(_), _) => return Ok(None),
        (RenewalAction::UpdateBundle, Some(held)) => held.identity.clone(),
        (RenewalAction::UpdateBundle | RenewalAction::Renew(_), _) => {
            issue_leaf(&authorities.signing, names, now)?
        }
    };
    Ok(Some(Credentials { identity, bundle: authorities.bundle() }))
}

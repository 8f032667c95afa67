//! Whether the credentials that somebody holds are as they must be.

use std::collections::BTreeMap;

use super::authorities::Authorities;
use super::issue::{DAY, Identity, IssueError, LEAF_DAYS, Names, belongs, leaf, read};

/// Days before its end at which a certificate is made anew: after 20 of 30.
pub const BEFORE_END_DAYS: i64 = 10;

/// Keys of a Secret of the type `kubernetes.io/tls`, and the bundle beside them.
pub const CERT: &str = "tls.crt";
/// The key.
pub const KEY: &str = "tls.key";
/// The bundle of authorities.
pub const BUNDLE: &str = "ca.crt";

/// A certificate, its key and whom its owner trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The certificate and its key.
    pub identity: Identity,
    /// Authorities, PEM.
    pub bundle: String,
}

impl Credentials {
    /// What a Secret holds; `None` = not all of it.
    pub fn of_secret(data: &BTreeMap<String, Vec<u8>>) -> Option<Credentials> {
        let text = |key: &str| String::from_utf8(data.get(key)?.clone()).ok();
        let identity = Identity { cert: text(CERT)?, key: text(KEY)? };
        Some(Credentials { identity, bundle: text(BUNDLE)? })
    }
}

/// What is to be done about credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before that moment, seconds since 1970.
    At(i64),
    /// Another bundle; the certificate stays.
    Bundle,
    /// A new certificate, for that reason.
    Renew(&'static str),
}

/// What is to be done about `held` so that it names `names` and is good among `authorities`.
pub fn due(held: Option<&Credentials>, names: &Names, authorities: &Authorities, now: i64) -> Due {
    let Some(held) = held else { return Due::Renew("there is none") };
    let (Ok(cert), Ok(signing)) = (read(&held.identity.cert), read(&authorities.signing.cert)) else {
        return Due::Renew("it cannot be read");
    };
    let renew_at = cert.not_after - BEFORE_END_DAYS * DAY;
    if cert.names.as_ref() != Some(names) {
        Due::Renew("it names somebody else")
    } else if cert.issuer != signing.subject {
        Due::Renew("another authority signs now")
    } else if !belongs(&held.identity.key, &cert.public_key) {
        Due::Renew("its key is another one's")
    } else if now >= renew_at
        || now < cert.not_before
        || cert.not_after - cert.not_before > 2 * LEAF_DAYS * DAY
    {
        Due::Renew("its time is over")
    } else if held.bundle != authorities.bundle() {
        Due::Bundle
    } else {
        Due::At(renew_at)
    }
}

/// What is to be held instead; `None` = `held` is as it must be.
///
/// # Errors
/// No certificate could be made.
pub fn renewed(
    held: Option<&Credentials>,
    names: &Names,
    authorities: &Authorities,
    now: i64,
) -> Result<Option<Credentials>, IssueError> {
    let identity = match (due(held, names, authorities, now), held) {
        (Due::At(_), _) => return Ok(None),
        (Due::Bundle, Some(held)) => held.identity.clone(),
        (Due::Bundle | Due::Renew(_), _) => leaf(&authorities.signing, names, now)?,
    };
    Ok(Some(Credentials { identity, bundle: authorities.bundle() }))
}

//! The signing authority, its successor and its predecessor.

use std::collections::BTreeMap;

use super::issue::{CA_VALIDITY_DAYS, DAY_SECONDS, Identity, IssueError, issue_ca, parse_cert};

/// Overlap of two authorities before the next step of a rotation, seconds.
pub const ROTATION_OVERLAP_SECONDS: i64 = 3600;
/// Days after which an authority gets a successor: early enough to notice a failed rotation.
pub const ROTATE_DAYS: i64 = CA_VALIDITY_DAYS * 2 / 3;

/// Keys of the Secret.
const SIGNING_KEYS: [&str; 2] = ["tls.crt", "tls.key"];
const NEXT_KEYS: [&str; 2] = ["next.crt", "next.key"];
const PREVIOUS_KEY: &str = "previous.crt";
const ROTATED_AT_KEY: &str = "turned-at";

/// All authorities that are valid at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaBundle {
    /// The authority that signs now.
    pub signing: Identity,
    /// The authority that signs next; its certificate is already in the bundles, or soon will be.
    pub next: Option<Identity>,
    /// Certificate of the authority that signed before.
    pub previous: Option<String>,
    /// When the last step of a rotation was taken, seconds since 1970.
    pub rotated_at: i64,
}

/// Why a Secret contains no authorities.
#[derive(Debug, thiserror::Error)]
pub enum CaSecretError {
    /// A key is missing or not text.
    #[error("key `{0}` is missing or is not text")]
    Missing(&'static str),
    /// A certificate is invalid.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl CaBundle {
    /// Creates the first authority.
    ///
    /// # Errors
    /// The key cannot be generated.
    pub fn generate(now: i64) -> Result<CaBundle, IssueError> {
        Ok(CaBundle { signing: issue_ca(now)?, next: None, previous: None, rotated_at: now })
    }

    /// Parses a Secret.
    ///
    /// # Errors
    /// The Secret contains no signing authority.
    pub fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<CaBundle, CaSecretError> {
        let text = |key: &str| data.get(key).and_then(|value| String::from_utf8(value.clone()).ok());
        let pair = |keys: [&str; 2]| Some(Identity { cert: text(keys[0])?, key: text(keys[1])? });
        let signing = pair(SIGNING_KEYS).ok_or(CaSecretError::Missing(SIGNING_KEYS[0]))?;
        let next = pair(NEXT_KEYS);
        let turned_at = text(ROTATED_AT_KEY)
            .and_then(|text| text.parse().ok())
            .ok_or(CaSecretError::Missing(ROTATED_AT_KEY))?;
        for authority in [Some(&signing), next.as_ref()].into_iter().flatten() {
            parse_cert(&authority.cert)?;
        }
        Ok(CaBundle { signing, next, previous: text(PREVIOUS_KEY), rotated_at: turned_at })
    }

    /// Returns all keys of the Secret; `None` = to be removed.
    pub fn to_secret(&self) -> BTreeMap<&'static str, Option<String>> {
        let next = self.next.as_ref();
        BTreeMap::from([
            (SIGNING_KEYS[0], Some(self.signing.cert.clone())),
            (SIGNING_KEYS[1], Some(self.signing.key.clone())),
            (NEXT_KEYS[0], next.map(|next| next.cert.clone())),
            (NEXT_KEYS[1], next.map(|next| next.key.clone())),
            (PREVIOUS_KEY, self.previous.clone()),
            (ROTATED_AT_KEY, Some(self.rotated_at.to_string())),
        ])
    }

    /// Returns the authorities after a rotation step due at `now`; `None` = no step is due.
    ///
    /// # Errors
    /// The key cannot be generated, or the certificate cannot be read.
    pub fn rotated(&self, now: i64) -> Result<Option<CaBundle>, IssueError> {
        if now < self.next_rotation()? {
            return Ok(None);
        }
        let kept = CaBundle { rotated_at: now, ..self.clone() };
        Ok(Some(match (&self.next, &self.previous) {
            (Some(next), _) => CaBundle {
                signing: next.clone(),
                next: None,
                previous: Some(self.signing.cert.clone()),
                ..kept
            },
            (None, Some(_)) => CaBundle { previous: None, ..kept },
            (None, None) => CaBundle { next: Some(issue_ca(now)?), ..kept },
        }))
    }

    /// Returns when the next rotation step is due, seconds since 1970.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn next_rotation(&self) -> Result<i64, IssueError> {
        if self.next.is_some() || self.previous.is_some() {
            return Ok(self.rotated_at + ROTATION_OVERLAP_SECONDS);
        }
        Ok(parse_cert(&self.signing.cert)?.not_before + ROTATE_DAYS * DAY_SECONDS)
    }

    /// Returns all trusted authorities, PEM.
    pub fn bundle(&self) -> String {
        let all =
            [Some(&self.signing.cert), self.next.as_ref().map(|next| &next.cert), self.previous.as_ref()];
        all.into_iter().flatten().map(|cert| format!("{}\n", cert.trim_end())).collect()
    }
}

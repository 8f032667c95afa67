//! The authority that signs, its successor and its predecessor.

use std::collections::BTreeMap;

use super::issue::{CA_VALIDITY_DAYS, DAY_SECONDS, Identity, IssueError, issue_ca, parse_cert};

/// Time for which two authorities are good side by side before the next step of a rotation, seconds.
pub const ROTATION_OVERLAP_SECONDS: i64 = 3600;
/// Days after which an authority gets a successor: early enough that one that fails to come is noticed.
pub const ROTATE_DAYS: i64 = CA_VALIDITY_DAYS * 2 / 3;

/// Keys of the Secret.
const SIGNING_KEYS: [&str; 2] = ["tls.crt", "tls.key"];
const NEXT_KEYS: [&str; 2] = ["next.crt", "next.key"];
const PREVIOUS_KEY: &str = "previous.crt";
const ROTATED_AT_KEY: &str = "turned-at";

/// All authorities that are good at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaBundle {
    /// Signs.
    pub signing: Identity,
    /// Signs next; everybody knows it already, or soon will.
    pub next: Option<Identity>,
    /// Signed before; its certificate alone.
    pub previous: Option<String>,
    /// When the last step of a rotation was taken, seconds since 1970.
    pub rotated_at: i64,
}

/// Why a Secret holds no authorities.
#[derive(Debug, thiserror::Error)]
pub enum CaSecretError {
    /// A key is missing or no text.
    #[error("`{0}` is missing, or no text")]
    Missing(&'static str),
    /// A certificate that is none.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl CaBundle {
    /// The first one.
    ///
    /// # Errors
    /// No key could be made.
    pub fn generate(now: i64) -> Result<CaBundle, IssueError> {
        Ok(CaBundle { signing: issue_ca(now)?, next: None, previous: None, rotated_at: now })
    }

    /// What a Secret holds.
    ///
    /// # Errors
    /// It holds none that could sign.
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

    /// What a Secret is to hold: every key, those that go as `None`.
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

    /// What they are to be at `now`; `None` = as they are.
    ///
    /// # Errors
    /// No key could be made, or the certificate cannot be read.
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

    /// When the next step of a rotation is due, seconds since 1970.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn next_rotation(&self) -> Result<i64, IssueError> {
        if self.next.is_some() || self.previous.is_some() {
            return Ok(self.rotated_at + ROTATION_OVERLAP_SECONDS);
        }
        Ok(parse_cert(&self.signing.cert)?.not_before + ROTATE_DAYS * DAY_SECONDS)
    }

    /// What everybody is to trust: all of them, PEM.
    pub fn bundle(&self) -> String {
        let all =
            [Some(&self.signing.cert), self.next.as_ref().map(|next| &next.cert), self.previous.as_ref()];
        all.into_iter().flatten().map(|cert| format!("{}\n", cert.trim_end())).collect()
    }
}

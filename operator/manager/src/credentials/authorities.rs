//! The authority that signs, its successor and its predecessor.

use std::collections::BTreeMap;

use super::issue::{AUTHORITY_DAYS, DAY, Identity, IssueError, authority, read};

/// Time for which two authorities are good side by side before the next step of a rotation, seconds.
pub const OVERLAP: i64 = 3600;
/// Days after which an authority gets a successor: early enough that one that fails to come is noticed.
pub const ROTATE_DAYS: i64 = AUTHORITY_DAYS * 2 / 3;

/// Keys of the Secret.
const SIGNING: [&str; 2] = ["tls.crt", "tls.key"];
const NEXT: [&str; 2] = ["next.crt", "next.key"];
const PREVIOUS: &str = "previous.crt";
const TURNED: &str = "turned-at";

/// All authorities that are good at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// Signs.
    pub signing: Identity,
    /// Signs next; everybody knows it already, or soon will.
    pub next: Option<Identity>,
    /// Signed before; its certificate alone.
    pub previous: Option<String>,
    /// When the last step of a rotation was taken, seconds since 1970.
    pub turned_at: i64,
}

/// Why a Secret holds no authorities.
#[derive(Debug, thiserror::Error)]
pub enum BadSecret {
    /// A key is missing or no text.
    #[error("`{0}` is missing, or no text")]
    Missing(&'static str),
    /// A certificate that is none.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl Authorities {
    /// The first one.
    ///
    /// # Errors
    /// No key could be made.
    pub fn first(now: i64) -> Result<Authorities, IssueError> {
        Ok(Authorities { signing: authority(now)?, next: None, previous: None, turned_at: now })
    }

    /// What a Secret holds.
    ///
    /// # Errors
    /// It holds none that could sign.
    pub fn of_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Authorities, BadSecret> {
        let text = |key: &str| data.get(key).and_then(|value| String::from_utf8(value.clone()).ok());
        let pair = |keys: [&str; 2]| Some(Identity { cert: text(keys[0])?, key: text(keys[1])? });
        let signing = pair(SIGNING).ok_or(BadSecret::Missing(SIGNING[0]))?;
        let next = pair(NEXT);
        let turned_at = text(TURNED).and_then(|text| text.parse().ok()).ok_or(BadSecret::Missing(TURNED))?;
        for authority in [Some(&signing), next.as_ref()].into_iter().flatten() {
            read(&authority.cert)?;
        }
        Ok(Authorities { signing, next, previous: text(PREVIOUS), turned_at })
    }

    /// What a Secret is to hold: every key, those that go as `None`.
    pub fn to_secret(&self) -> BTreeMap<&'static str, Option<String>> {
        let next = self.next.as_ref();
        BTreeMap::from([
            (SIGNING[0], Some(self.signing.cert.clone())),
            (SIGNING[1], Some(self.signing.key.clone())),
            (NEXT[0], next.map(|next| next.cert.clone())),
            (NEXT[1], next.map(|next| next.key.clone())),
            (PREVIOUS, self.previous.clone()),
            (TURNED, Some(self.turned_at.to_string())),
        ])
    }

    /// What they are to be at `now`; `None` = as they are.
    ///
    /// # Errors
    /// No key could be made, or the certificate cannot be read.
    pub fn turned(&self, now: i64) -> Result<Option<Authorities>, IssueError> {
        if now < self.next_turn()? {
            return Ok(None);
        }
        let kept = Authorities { turned_at: now, ..self.clone() };
        Ok(Some(match (&self.next, &self.previous) {
            (Some(next), _) => Authorities {
                signing: next.clone(),
                next: None,
                previous: Some(self.signing.cert.clone()),
                ..kept
            },
            (None, Some(_)) => Authorities { previous: None, ..kept },
            (None, None) => Authorities { next: Some(authority(now)?), ..kept },
        }))
    }

    /// When the next step of a rotation is due, seconds since 1970.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn next_turn(&self) -> Result<i64, IssueError> {
        if self.next.is_some() || self.previous.is_some() {
            return Ok(self.turned_at + OVERLAP);
        }
        Ok(read(&self.signing.cert)?.not_before + ROTATE_DAYS * DAY)
    }

    /// What everybody is to trust: all of them, PEM.
    pub fn bundle(&self) -> String {
        let all =
            [Some(&self.signing.cert), self.next.as_ref().map(|next| &next.cert), self.previous.as_ref()];
        all.into_iter().flatten().map(|cert| format!("{}\n", cert.trim_end())).collect()
    }
}
